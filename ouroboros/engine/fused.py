"""Run Llama-like decoders on a CPU by packed matrix products and compiled kernels.

A call alternates matrix products with packed weights (`ouroboros.engine.prepack`) and a few kernels
(`ouroboros.engine.cpu_kernels`), so it spends almost all its time reading weights. In both, a row's
result does not depend on the other rows. So these calls are always exact: a token's logits are
bitwise identical in every call. If our own kernel can multiply all packed weights, a call of up to
64 rows is a single kernel, without Python between its steps.

`fuse` recognises models that are built like Llama and compares their logits with those of
transformers' modules; for any other model it returns None. The model is unchanged: small weights
are read in place, packed weights are copies. If a weight or a module changes, calls go through the
modules again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import Cache, PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.cpu_kernels import BARRIER, FEW, PIECE, POOL, kernels
from ouroboros.engine.eager import Eager
from ouroboros.engine.exact import Reach, attend, check_exact, is_sliding
from ouroboros.engine.joint import SERVED, JointCache
from ouroboros.engine.masks import Layout, Masks
from ouroboros.engine.prepack import MOST, PackedWeights, can_be_packed, prepack_linears
from ouroboros.engine.static import module_facts
from ouroboros.engine.trial import why_different

TYPES = ("llama", "mistral", "qwen2", "qwen3")  # config.model_type
ROPES = ("default", "linear", "llama3", "yarn")  # RoPE types with angles fixed by the position
CHILDREN = (
    ("", {"model", "lm_head"}),
    ("model", {"embed_tokens", "layers", "norm", "rotary_emb"}),
)
OWNERS = {"ouroboros", "torch", "transformers"}  # packages whose modules have known implementations
ANGLES = 64  # positions whose rotary angles are computed together
log = logging.getLogger(__name__)


class DecoderLayer(NamedTuple):
    """The modules of a decoder layer, in the order of their use; None for a norm that it lacks."""

    input_layernorm: Any
    q_proj: Any
    k_proj: Any
    v_proj: Any
    q_norm: Any
    k_norm: Any
    o_proj: Any
    post_attention_layernorm: Any
    gate_proj: Any
    up_proj: Any
    down_proj: Any

    @property
    def qkv(self) -> tuple[Any, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    @property
    def gate_up(self) -> tuple[Any, ...]:
        return self.gate_proj, self.up_proj


class Fused(Eager):
    """The engine that calls kernels and packed matrix products. If the model has changed since it
    was packed, calls go through its modules or, if exact calls are `demanded`, raise `ValueError`.
    `fresh`: whether the model was unchanged at the last check."""

    feeds_apart = False

    def __init__(
        self, model: PreTrainedModel, info: ModelInfo, cache: SlotCache, packed: PackedWeights
    ) -> None:
        super().__init__(model, info, cache)
        self.packed, self.demanded, self.fresh, self.altered = packed, False, True, False
        base: Any = model.model
        self.layers = [_layer(layer) for layer in base.layers]
        self.norm, self.head = base.norm, model.lm_head
        self.embed, self.rotary = base.embed_tokens, base.rotary_emb
        self.scale = _bits(base.layers[0].self_attn.scaling)
        self.eps = _bits(base.norm.variance_epsilon)
        self.sliding = [is_sliding(at, info) for at in range(len(self.layers))]
        self.cos = self.sin = torch.empty(0, device="cpu")
        self.few: FewRows | None = None
        first, shape = self.layers[0], info.layers[0]
        self.width, self.inner = self.norm.weight.numel(), first.gate_proj.out_features
        attended = first.q_proj.out_features
        self.heads = attended // shape.key_width
        qkv = attended + 2 * shape.kv_heads * shape.key_width
        widths = (self.width, self.width, qkv, attended, attended, self.width)
        self.buffers = [  # scratch memory of the `decode` kernel, in the order of its arguments
            self.cos.new_empty(MOST, width, dtype=torch.float32 if index == 3 else info.dtype)
            for index, width in enumerate((*widths, 2 * self.inner, self.inner))
        ]
        parts = [module._modules for module in model.modules() if module._modules]
        self.children = [(now, dict(now)) for now in parts]
        self.made = module_facts(model), self.rotary.inv_freq.tolist()

    @property
    def stale(self) -> bool:
        """Whether weights, modules, hooks or modules' attributes have changed since packing."""
        return self._replaced() or self._altered()

    def _replaced(self) -> bool:
        return self.packed.stale or any(now != then for now, then in self.children)

    def _altered(self) -> bool:
        now = module_facts(self.model), self.rotary.inv_freq.tolist()
        return now != self.made or is_hooked(self.model)

    def call(self, layout: Layout, token: torch.Tensor | None = None) -> torch.Tensor:
        self._check(begins=not layout.base)
        return super().call(layout, token)

    def call_jointly(self, parts: Sequence[tuple[SlotCache, Layout]]) -> list[torch.Tensor]:
        self._check(begins=any(not layout.base for _, layout in parts))
        return super().call_jointly(parts)

    def masks(self, layout: Layout) -> Any:
        return self.joint_mask(layout) if self.fresh else super().masks(layout)

    def joint_mask(self, layout: Layout) -> Any:
        if not self.fresh:
            return super().joint_mask(layout)
        return Reach.of(layout, self.info.sliding_window)

    def _check(self, *, begins: bool) -> None:
        """Set `fresh`: whether the model is unchanged. Look for replaced weights and modules; in a
        call that `begins` a sequence, also compare sampled elements, hooks and modules' attributes.
        Raise `ValueError` if the model has changed and exact calls are `demanded`."""
        if begins:
            self.packed.check(closely=False)
            self.altered, self.few = self._altered(), None
        self.fresh = not (self._replaced() or self.altered)
        if self.demanded and not self.fresh:
            raise ValueError("the model has changed: call prepack() on the CachedModel")

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Masks,
        keep: int | torch.Tensor,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        if not self.fresh:
            return super().forward(ids, positions, mask, keep, cache)
        parts: list[tuple[SlotCache, slice, Any]] = [(self.cache, slice(0, ids.shape[1]), mask)]
        if isinstance(cache, JointCache):
            parts = [(share.slots, share.fed, share.mask) for share in cache.shares]
        if ids.shape[1] <= MOST:
            if self.few is None or self.few.stale:
                self.few = FewRows(self)
            if self.few.table is not None:
                return self.few.call(ids[0], self._angles(positions[0]), parts, keep)
        kernel, most = kernels(self.info.dtype), torch.get_num_threads()
        hidden = self.embed(ids)[0]
        n, width, heads, columns = len(hidden), self.width, self.heads, self.inner
        threads = most if n * width > FEW else 1
        shape = self.info.layers[0]
        cos, sin = self._angles(positions[0])
        normed, added, total = torch.empty_like(hidden), 0, hidden.data_ptr()
        for index, layer in enumerate(self.layers):
            kernel.norm(
                *(n, n, width, total, added, layer.input_layernorm.weight.data_ptr()),
                *(normed.data_ptr(), self.eps),
                threads=threads,
            )
            qkv = _product(normed, *layer.qkv)
            queries = qkv.new_empty(n, heads, shape.key_width, dtype=torch.float32)
            norms = [_address(own and own.weight) for own in (layer.q_norm, layer.k_norm)]
            attended = []
            for slots, fed, reach in parts:
                own, rows = slots.slots[index], fed.stop - fed.start
                pointers = [rows_of[fed].data_ptr() for rows_of in (qkv, cos, sin)]
                kernel.rotate(
                    *(rows, rows, heads, shape.kv_heads, shape.key_width, *pointers),
                    *(*norms, self.eps, self.scale),
                    *(own.length, own.keys.shape[2], own.keys.data_ptr(), own.values.data_ptr()),
                    queries[fed].data_ptr(),
                    threads=threads,
                )
                attended.append(
                    attend(queries[fed], own.keys[0], own.values[0], reach, self.sliding[index])
                )
            joined = attended[0] if len(attended) == 1 else torch.cat(attended)
            addend = _product(joined.view(n, -1), layer.o_proj)
            kernel.norm(
                *(n, n, width, total, addend.data_ptr()),
                *(layer.post_attention_layernorm.weight.data_ptr(), normed.data_ptr(), self.eps),
                threads=threads,
            )
            gate_up = _product(normed, *layer.gate_up)
            gated = gate_up.new_empty(n, columns)  # code that works in place is not vectorised
            kernel.gate(
                n * -(-columns // PIECE),
                *(n, columns, gate_up.data_ptr(), gated.data_ptr()),
                threads=most if n * columns > FEW else 1,
            )
            addend = _product(gated, layer.down_proj)
            added = addend.data_ptr()
        kernel.norm(
            *(n, n, width, total, added, self.norm.weight.data_ptr()),
            *(normed.data_ptr(), self.eps),
            threads=threads,
        )
        kept = normed[-keep:] if isinstance(keep, int) else normed.index_select(0, keep)
        return _product(kept, self.head)

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotary cosines and sines, [n, width] each, of `positions` [n]. Their table
        grows by `ANGLES` positions at a time, so a position's values are bitwise identical in every
        call."""
        if (last := int(positions.max())) >= len(self.cos):
            like, pieces = self.cos.new_empty(0, dtype=self.info.dtype), [(self.cos, self.sin)]
            for start in range(len(self.cos), max(last + 1, 2 * len(self.cos)), ANGLES):
                cos, sin = self.rotary(
                    like, positions.new_tensor(range(start, start + ANGLES))[None]
                )
                pieces.append((cos[0], sin[0]))
            cos, sin = zip(*(pair for pair in pieces if len(pair[0])), strict=True)
            self.cos, self.sin = torch.cat(cos), torch.cat(sin)
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)


class FewRows:
    """Runs the whole model in one kernel call, for up to `MOST` rows. `table` [layers, fields] has
    the addresses of weights and biases by layer; None if the kernel cannot multiply the weights.
    `packed` keeps the packed weights in memory even if the layers are packed again."""

    def __init__(self, engine: Fused) -> None:
        self.engine = engine
        self.table: np.ndarray | None = None
        used = [part for layer in engine.layers for part in layer if part is not None]
        used += [engine.norm, engine.head]
        named = [(part._parameters, name) for part in used for name in ("weight", "bias")]
        self.sources = [
            (held, name, weight, _mark(weight))
            for held, name in named
            if (weight := held.get(name)) is not None
        ]
        groups = [
            [layer.qkv, (layer.o_proj,), layer.gate_up, (layer.down_proj,)]
            for layer in engine.layers
        ]
        self.packed = [part.packed for row in groups for part, *_ in row] + [engine.head.packed]
        if not all(own.address for own in self.packed) or not POOL:
            return
        self.biases = [[_bias(*group) for group in row] for row in (*groups, [(engine.head,)])]
        rows: list[list[int]] = []
        for layer, own, biases in zip(engine.layers, groups, self.biases, strict=False):
            norms = (layer.input_layernorm, layer.post_attention_layernorm)
            rows.append(
                [_address(part and part.weight) for part in (*norms, layer.q_norm, layer.k_norm)]
                + [group[0].packed.address for group in own]
                + [_address(bias) for bias in biases]
                + [int(engine.sliding[len(rows)])]
            )
        self.table = np.array(rows, dtype=np.int64)

    @property
    def stale(self) -> bool:
        """Whether a parameter was replaced or written to since `table` was made."""
        return any(
            held.get(name) is not weight or _mark(weight) != mark
            for held, name, weight, mark in self.sources
        )

    def call(
        self,
        ids: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        parts: Sequence[tuple[SlotCache, slice, Any]],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        """Return the logits of the rows to `keep`, [rows, vocab] (see `Eager.forward`). `ids` are
        the n tokens to feed, `angles` the cosines and sines of their positions. `parts` has for
        each sequence: its cache slots, its rows among the n, and the slots that these rows attend
        to (a `Reach`)."""
        engine, n, table = self.engine, len(ids), self.table
        assert table is not None
        shape, threads = engine.info.layers[0], torch.get_num_threads()
        kept = np.arange(n - keep if keep else 0, n) if isinstance(keep, int) else keep.numpy()
        sequences = np.array(
            [
                [
                    *(fed.start, fed.stop, slots.length, slots.capacity),
                    *(slots.slots[0].keys.data_ptr(), slots.slots[0].values.data_ptr()),
                    *(*reach.addresses[:3], reach.tails.shape[1], reach.addresses[3]),
                ]
                for slots, fed, reach in parts
            ]
        )
        logits = engine.cos.new_empty(len(kept), engine.head.out_features, dtype=engine.info.dtype)
        counters, ids = np.zeros(9 * len(table) + 3, dtype=np.int64), ids.contiguous()
        kernel = kernels(engine.info.dtype).decode
        assert kernel is not None
        kernel(
            *(threads, n, engine.width, engine.heads, shape.kv_heads),
            *(shape.key_width, engine.inner, engine.eps, engine.scale, logits.element_size()),
            *(_start(table), len(table), _start(sequences), len(sequences)),
            *(BARRIER if threads > 1 else 0, _start(counters), ids.data_ptr()),
            *(engine.embed.weight.data_ptr(), len(engine.embed.weight)),
            *(angles[0].data_ptr(), angles[1].data_ptr(), _start(kept), len(kept)),
            *(engine.norm.weight.data_ptr(), engine.head.packed.address),
            *(_address(self.biases[-1][0]), engine.head.out_features, logits.data_ptr()),
            *(buffer.data_ptr() for buffer in engine.buffers),
            threads=threads,
        )
        return logits


def _mark(weight: torch.Tensor) -> tuple[int, int]:
    """Return a weight's address and torch's count of writes to it (0 for inference tensors)."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _start(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def is_hooked(model: nn.Module) -> bool:
    """Return whether any module has hooks (`hooks_of`), or torch has global ones."""
    return any(hooks_of(model))


def hooks_of(model: nn.Module) -> list[tuple]:
    """Return the hooks of each module other than `PackedWeights.before_call`: their keys, and the
    id of a replaced `forward`. One more row has torch's global module hooks."""
    torchs, hooks = nn.modules.module, list[tuple]()
    for module in model.modules():
        before = module._forward_pre_hooks.items()
        keys = [k for k, hook in before if type(getattr(hook, "__self__", 0)) is not PackedWeights]
        replaced = [id(module.__dict__["forward"])] if "forward" in module.__dict__ else []
        hooks.append((*keys, *module._forward_hooks, *replaced))
    return [*hooks, (*torchs._global_forward_hooks, *torchs._global_forward_pre_hooks)]


def _bias(*layers: Any) -> torch.Tensor | None:
    """Return the concatenated biases of `layers`, zeros where one is missing; None if all are."""
    biases = [layer._parameters["bias"] for layer in layers]
    if all(own is None for own in biases):
        return None
    parts = [
        layer.weight.new_zeros(layer.out_features) if own is None else own
        for layer, own in zip(layers, biases, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _product(rows: torch.Tensor, *layers: Any) -> torch.Tensor:
    """Return `rows` times the packed weights of one layer, or of all layers of a group, plus
    biases, [n, outputs]. No module is called."""
    return layers[0].packed.multiply(rows, _bias(*layers))


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _layer(module: Any) -> DecoderLayer:
    parts = module._modules | module.self_attn._modules | module.mlp._modules
    return DecoderLayer(*(parts.get(name) for name in DecoderLayer._fields))


def fuse(
    model: PreTrainedModel, info: ModelInfo, cache: SlotCache, *, demanded: bool, timed: bool
) -> tuple[Fused | None, str]:
    """Pack a model's linear layers and return an engine that calls kernels, and "". Return None and
    the reason if the model is not built like Llama, if test calls are not exact, or, if `timed`, if
    packed weights are slower here. `demanded`: see `Fused`. Test calls overwrite the cache's first
    slots."""
    if not _is_llama_like(model, info):
        kinds = f"{', '.join(TYPES)} models without hooks, in float32 or bfloat16"
        return None, f"the CPU kernels run {kinds}, not this one in {info.dtype}"
    try:
        layers = [_layer(layer) for layer in model.model.layers]  # type: ignore[union-attr]
        groups = [group for layer in layers for group in (layer.qkv, layer.gate_up)]
        packed = prepack_linears(model, every=True, timed=timed, groups=groups)
        if not packed.layers:
            return (
                None,
                "packed weights are not faster on this machine, or do not fit",
            )
        engine = Fused(model, info, cache, packed)
        reason = why_different(engine, Eager(model, info, cache))
        if reason is None:
            check_exact(engine)
            engine.demanded = demanded
            return engine, ""
    except ValueError as error:
        reason = str(error)
    log.warning("%s is called by its modules: %s", type(model).__name__, reason)
    return None, reason


def _is_llama_like(model: PreTrainedModel, info: ModelInfo) -> bool:
    """Return whether a model consists of exactly the modules that `Fused` implements."""
    config: Any = model.config
    if info.device.type != "cpu" or info.dtype not in (torch.float32, torch.bfloat16):
        return False
    if config.model_type not in TYPES or config._attn_implementation not in SERVED:
        return False
    if any(set(model.get_submodule(path)._modules) != names for path, names in CHILDREN):
        return False
    kinds = {type(part) for part in model.modules()}
    owners = {own.__module__.split(".")[0] for kind in kinds for own in (kind, kind.forward)}
    if not owners <= OWNERS:
        return False  # a subclass, or a class whose forward was replaced
    base: Any = model.model
    layers, norms = [_layer(layer) for layer in base.layers], [base.norm]
    for layer, module in zip(layers, base.layers, strict=True):
        named = {name for name, part in layer._asdict().items() if part is not None}
        parts = set(module._modules) | set(module.self_attn._modules) | set(module.mlp._modules)
        if parts != named | {"self_attn", "mlp", "act_fn"}:
            return False
        if type(module.mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
            return False
        linears = [part for name, part in layer._asdict().items() if name.endswith("_proj")]
        if not all(can_be_packed(part, {}) for part in (*linears, model.lm_head)):
            return False
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [norm for norm in (layer.q_norm, layer.k_norm) if norm is not None]
    eps = {getattr(norm, "variance_epsilon", None) for norm in norms}
    scales = {layer.self_attn.scaling for layer in base.layers}
    width, kv_heads = info.layers[0].key_width, info.layers[0].kv_heads
    shapes = {(shape.key_width, shape.value_width, shape.kv_heads) for shape in info.layers}
    return (
        len(layers) == len(info.layers)  # else the config leaves some out
        and not is_hooked(model)
        and len(eps) == len(scales) == 1
        and None not in eps
        and shapes == {(width, width, kv_heads)}
        and width % 2 == 0
        and {weight.dtype for weight in model.parameters()} == {info.dtype}
        and type(base.embed_tokens) is nn.Embedding
        and getattr(base.rotary_emb, "rope_type", "") in ROPES
        and len(base.rotary_emb.inv_freq) * 2 == width
    )
