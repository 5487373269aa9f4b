"""Run Llama-like decoders on a CPU by packed matrix products and compiled kernels.

A call alternates matrix products with packed weights (`ouroboros.engine.prepack`) and a few kernels
(`ouroboros.engine.cpu_kernels`), so it spends almost all its time reading weights. In both, a row's
result does not depend on the other rows. So these calls are always exact: a token's logits are
bitwise identical in every call. If our own kernel can multiply all packed weights, a call of up to
128 rows is a single kernel, without Python between its steps.

`fuse` recognises models that are built like Llama and compares their logits with those of
transformers' modules; for any other model it returns None. The model is unchanged: small weights
are read in place, packed weights are copies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.cpu_kernels import FEW, PIECE, POOL, SLEEP, TEAM, kernels
from ouroboros.engine.eager import Eager, Part, make_room
from ouroboros.engine.exact import Reach, attend, check_exact, is_sliding
from ouroboros.engine.joint import SERVED
from ouroboros.engine.prepack import (
    MOST,
    Packed,
    PackedWeights,
    can_be_packed,
    can_pack_int8,
    prepack_linears,
)
from ouroboros.engine.quantised import Int8Linear
from ouroboros.engine.trial import why_different

TYPES = ("llama", "mistral", "qwen2", "qwen3")  # config.model_type
ROPES = ("default", "linear", "llama3", "yarn")  # RoPE types with angles fixed by the position
CHILDREN = (
    ("", {"model", "lm_head"}),
    ("model", {"embed_tokens", "layers", "norm", "rotary_emb"}),
)
OWNERS = {"torch", "transformers"}  # packages whose modules have known implementations
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


class Product(NamedTuple):
    """The matrix product of one layer, or of all layers of a group, with packed weights."""

    packed: Packed
    bias: torch.Tensor | None

    @classmethod
    def of(cls, packed: PackedWeights, *layers: Any) -> Product:
        known = [layer.bias.detach() for layer in layers if layer.bias is not None]
        if not known:
            return cls(packed.units[layers], None)
        parts = [
            known[0].new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
            for layer in layers
        ]
        return cls(packed.units[layers], parts[0] if len(parts) == 1 else torch.cat(parts))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return `rows` [n, inputs] times the weights, plus biases, [n, outputs]."""
        return self.packed.multiply(rows, self.bias)


class LayerWeights(NamedTuple):
    """The weights of a decoder layer: four norms (None: the layer lacks it), four products."""

    before: torch.Tensor
    after: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    qkv: Product
    o: Product
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, layer: DecoderLayer, packed: PackedWeights) -> LayerWeights:
        norms = layer.input_layernorm, layer.post_attention_layernorm, layer.q_norm, layer.k_norm
        groups = layer.qkv, (layer.o_proj,), layer.gate_up, (layer.down_proj,)
        weights = [None if norm is None else norm.weight.detach() for norm in norms]
        return cls(*weights, *(Product.of(packed, *group) for group in groups))  # type: ignore[arg-type]


class Share(NamedTuple):
    """One sequence in a call: its cache slots, its rows among all that are fed, and the slots that
    these rows attend to."""

    slots: SlotCache
    fed: slice
    reach: Reach
    written: int = 0  # rows of this call that are in the slots already

    def within(self, rows: slice) -> Share:
        """Return the part of this share in a smaller call that feeds only `rows`; it may be
        empty. Its `fed` counts from the first of them."""
        start = max(self.fed.start, rows.start)
        stop = max(start, min(self.fed.stop, rows.stop))
        own = slice(start - self.fed.start, stop - self.fed.start)
        fed = slice(start - rows.start, stop - rows.start)
        return Share(self.slots, fed, self.reach.of_rows(own), own.start)


class Fused(Eager):
    """The engine that calls kernels and packed matrix products. `table` [layers, fields] has the
    addresses of each layer's weights and biases, for the kernel that runs the whole model; None if
    this kernel cannot multiply the weights."""

    feeds_apart = False

    def __init__(
        self, model: PreTrainedModel, info: ModelInfo, cache: SlotCache, packed: PackedWeights
    ) -> None:
        super().__init__(model, info, cache)
        self.packed, base = packed, cast(Any, model.model)
        self.layers = [LayerWeights.of(_layer(layer), packed) for layer in base.layers]
        self.norm, self.head = base.norm.weight.detach(), Product.of(packed, model.lm_head)
        self.embeddings, self.rotary = base.embed_tokens.weight.detach(), base.rotary_emb
        self.scaling = base.layers[0].self_attn.scaling
        self.scale = _bits(self.scaling)
        self.eps = _bits(base.norm.variance_epsilon)
        self.sliding = [is_sliding(at, info) for at in range(len(self.layers))]
        self.cos = self.sin = torch.empty(0, device="cpu")
        first, shape = base.layers[0], info.layers[0]
        self.width, self.inner = self.norm.numel(), first.mlp.gate_proj.out_features
        attended = first.self_attn.q_proj.out_features
        self.heads = attended // shape.key_width
        qkv = attended + 2 * shape.kv_heads * shape.key_width
        widths = (self.width, self.width, qkv, attended, attended, self.width)
        self.buffers = [  # scratch memory of the `decode` kernel, in the order of its arguments
            self.cos.new_empty(MOST, width, dtype=torch.float32 if index == 3 else info.dtype)
            for index, width in enumerate((*widths, 2 * self.inner, self.inner))
        ]
        self.addresses = [buffer.data_ptr() for buffer in self.buffers]
        products = [self.head, *(product for layer in self.layers for product in layer[4:])]
        self.table: np.ndarray | None = None
        if POOL and all(product.packed.address for product in products):
            rows = [
                [_address(norm) for norm in layer[:4]]
                + [product.packed.address for product in layer[4:]]
                + [_address(product.bias) for product in layer[4:]]
                + [int(sliding)]
                + [_address(product.packed.scale) for product in layer[4:]]
                for layer, sliding in zip(self.layers, self.sliding, strict=True)
            ]
            self.table = np.array(rows, dtype=np.int64)

    def call(self, parts: Sequence[Part], token: torch.Tensor | None = None) -> list[torch.Tensor]:
        """See `Eager.call`. The inputs of the kernel that runs the whole model are prepared in
        NumPy, which takes less time than torch."""
        if self.table is None:
            return super().call(parts, token)
        self.forwards += 1
        make_room(parts)
        ids, positions, kept, shares = list[int](), list[np.ndarray](), list[int](), list[Share]()
        for slots, layout in parts:
            start = len(ids)
            kept += [start + row for row in layout.rows]
            ids += layout.known_ids(self.info.vocab_size)
            positions.append(layout.positions()[layout.held :])
            reach = Reach.of(layout, self.info.sliding_window)
            shares.append(Share(slots, slice(start, len(ids)), reach))
        if token is not None:
            ids[0] = int(token)
        fed = np.array(ids), positions[0] if len(parts) == 1 else np.concatenate(positions)
        logits = self._by_kernel(*fed, shares, np.array(kept))
        return [logits] if len(parts) == 1 else list(logits.split([len(p.rows) for _, p in parts]))

    def _by_kernel(
        self, ids: np.ndarray, positions: np.ndarray, shares: Sequence[Share], kept: np.ndarray
    ) -> torch.Tensor:
        """Return the logits of the rows `kept` (ascending indices), [kept, vocab]. The kernel that
        runs the whole model is called with up to `MOST` rows at a time. `ids` and `positions` are
        [rows]; all arrays are int64."""
        n, logits = len(ids), list[torch.Tensor]()
        if n <= MOST:
            return self._in_one_kernel(ids, positions, shares, kept)
        for start in range(0, n, MOST):
            rows = slice(start, min(start + MOST, n))
            own = [share.within(rows) for share in shares]
            wanted = kept[(rows.start <= kept) & (kept < rows.stop)] - start
            fed = [share for share in own if share.fed.start < share.fed.stop]
            logits.append(self._in_one_kernel(ids[rows], positions[rows], fed, wanted))
        return torch.cat(logits)

    def logits(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        parts: Sequence[Part],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        ends = list(accumulate(layout.fed for _, layout in parts))
        shares = [
            Share(slots, slice(end - layout.fed, end), Reach.of(layout, self.info.sliding_window))
            for (slots, layout), end in zip(parts, ends, strict=True)
        ]
        self._extend_angles(int(positions.max()))
        angles = (table.index_select(0, positions[0]) for table in (self.cos, self.sin))
        return self._by_layer(ids[0], tuple(angles), shares, keep)

    def _by_layer(
        self,
        ids: torch.Tensor,
        angles: tuple[torch.Tensor, ...],
        shares: Sequence[Share],
        keep: int | torch.Tensor,
    ) -> torch.Tensor:
        """Return the logits of the rows to `keep`, [rows, vocab] (see `Eager.logits`). `ids` are
        the n tokens to feed, `angles` the cosines and sines of their positions."""
        kernel, most = kernels(self.info.dtype), torch.get_num_threads()
        hidden, (cos, sin) = nn.functional.embedding(ids, self.embeddings), angles
        n, width, heads, columns = len(hidden), self.width, self.heads, self.inner
        threads = most if n * width > FEW else 1
        shape = self.info.layers[0]
        normed, added, total = torch.empty_like(hidden), 0, hidden.data_ptr()
        for index, layer in enumerate(self.layers):
            kernel.norm(
                *(n, n, width, total, added, layer.before.data_ptr(), normed.data_ptr(), self.eps),
                threads=threads,
            )
            qkv = layer.qkv(normed)
            queries = qkv.new_empty(n, heads, shape.key_width, dtype=torch.float32)
            attended = []
            for slots, fed, reach, _ in shares:
                own, rows = slots.slots[index], fed.stop - fed.start
                pointers = [rows_of[fed].data_ptr() for rows_of in (qkv, cos, sin)]
                kernel.rotate(
                    *(rows, rows, heads, shape.kv_heads, shape.key_width, *pointers),
                    *(_address(layer.q_norm), _address(layer.k_norm), self.eps),
                    *(own.length, own.keys.shape[2], own.keys.data_ptr(), own.values.data_ptr()),
                    queries[fed].data_ptr(),
                    threads=threads,
                )
                attended.append(
                    attend(
                        *(queries[fed], own.keys[0], own.values[0], reach),
                        *(self.sliding[index], self.scaling),
                    )
                )
            joined = attended[0] if len(attended) == 1 else torch.cat(attended)
            addend = layer.o(joined.view(n, -1))
            kernel.norm(
                *(n, n, width, total, addend.data_ptr(), layer.after.data_ptr()),
                *(normed.data_ptr(), self.eps),
                threads=threads,
            )
            gate_up = layer.gate_up(normed)
            gated = gate_up.new_empty(n, columns)  # code that works in place is not vectorised
            kernel.gate(
                n * -(-columns // PIECE),
                *(n, columns, gate_up.data_ptr(), gated.data_ptr()),
                threads=most if n * columns > FEW else 1,
            )
            addend = layer.down(gated)
            added = addend.data_ptr()
        kernel.norm(
            *(n, n, width, total, added, self.norm.data_ptr(), normed.data_ptr(), self.eps),
            threads=threads,
        )
        return self.head(normed[-keep:] if isinstance(keep, int) else normed.index_select(0, keep))

    def _in_one_kernel(
        self, ids: np.ndarray, positions: np.ndarray, shares: Sequence[Share], kept: np.ndarray
    ) -> torch.Tensor:
        """Return what `_by_kernel` does, by one call of the kernel with up to `MOST` rows."""
        table, head, shape = self.table, self.head, self.info.layers[0]
        assert table is not None
        self._extend_angles(int(positions.max()))
        sequences = np.array(
            [
                [
                    *(fed.start, fed.stop, slots.length + written, slots.capacity),
                    *(slots.slots[0].keys.data_ptr(), slots.slots[0].values.data_ptr()),
                    *(*reach.addresses[:3], reach.tails.shape[1], reach.addresses[3]),
                ]
                for slots, fed, reach, written in shares
            ]
        )
        logits = self.cos.new_empty(len(kept), head.packed.shape[0], dtype=self.info.dtype)
        counters, threads = np.zeros(18 * len(table) + 6, dtype=np.int64), torch.get_num_threads()
        kernel = kernels(self.info.dtype).decode
        assert kernel is not None
        kernel(
            *(threads, len(ids), self.width, self.heads, shape.kv_heads),
            *(shape.key_width, self.inner, self.eps, self.scale, self.info.dtype.itemsize),
            *(_start(table), len(table), _start(sequences), len(sequences)),
            *(TEAM if threads > 1 else 0, _start(counters), _start(ids)),
            *(self.embeddings.data_ptr(), len(self.embeddings), _start(positions)),
            *(self.cos.data_ptr(), self.sin.data_ptr(), len(self.cos), _start(kept), len(kept)),
            *(self.norm.data_ptr(), head.packed.address),
            *(_address(head.bias), head.packed.shape[0], logits.data_ptr()),
            *(*self.addresses, SLEEP, _address(head.packed.scale)),
            threads=threads,
        )
        return logits

    def _extend_angles(self, last: int) -> None:
        """Extend the tables of rotary cosines and sines, [positions, width] each, to position
        `last`. They grow by `ANGLES` positions at a time, so a position's values are bitwise
        identical in every call."""
        if last < len(self.cos):
            return
        like, pieces = self.cos.new_empty(0, dtype=self.info.dtype), [(self.cos, self.sin)]
        for start in range(len(self.cos), max(last + 1, 2 * len(self.cos)), ANGLES):
            places = torch.arange(start, start + ANGLES, device="cpu")[None]
            cos, sin = self.rotary(like, places)
            pieces.append((cos[0], sin[0]))
        cos, sin = zip(*(pair for pair in pieces if len(pair[0])), strict=True)
        self.cos, self.sin = torch.cat(cos), torch.cat(sin)


def _start(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _layer(module: Any) -> DecoderLayer:
    parts = module._modules | module.self_attn._modules | module.mlp._modules
    return DecoderLayer(*(parts.get(name) for name in DecoderLayer._fields))


def fuse(
    model: PreTrainedModel, info: ModelInfo, cache: SlotCache, *, timed: bool
) -> tuple[Fused | None, str]:
    """Pack a model's linear layers and return an engine that calls kernels, and "". Return None and
    the reason if the model is not built like Llama, if test calls are not exact, or, if `timed`, if
    packed weights are slower here. Test calls overwrite the cache's first slots."""
    if not _is_llama_like(model, info):
        kinds = f"{', '.join(TYPES)} models without hooks, in float32 or bfloat16"
        return None, f"the CPU kernels run {kinds}, not this one in {info.dtype}"
    try:
        layers = [_layer(layer) for layer in model.model.layers]  # type: ignore[union-attr]
        groups = [group for layer in layers for group in (layer.qkv, layer.gate_up)]
        packed = prepack_linears(model, every=True, timed=timed, groups=groups)
        if not packed.units:
            return None, "packed weights are not faster on this machine, or do not fit"
        engine, modules = Fused(model, info, cache, packed), Eager(model, info, cache)
        modules.packed = packed  # plain products of a few rows can be very slow in bfloat16
        reason = why_different(engine, modules)
        if reason is None:
            check_exact(engine)
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
    kinds = {type(part) for part in model.modules()} - {Int8Linear}
    if any(kind.__module__.split(".")[0] not in OWNERS for kind in kinds):
        return False  # a subclass
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
        every = (*linears, model.lm_head)
        if not all(can_be_packed(part, {}) or can_pack_int8(part) for part in every):
            return False
        norms += [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [norm for norm in (layer.q_norm, layer.k_norm) if norm is not None]
    eps = {getattr(norm, "variance_epsilon", None) for norm in norms}
    scales = {layer.self_attn.scaling for layer in base.layers}
    width, kv_heads = info.layers[0].key_width, info.layers[0].kv_heads
    shapes = {(shape.key_width, shape.value_width, shape.kv_heads) for shape in info.layers}
    return (
        len(layers) == len(info.layers)  # else the config leaves some out
        and len(eps) == len(scales) == 1
        and None not in eps
        and shapes == {(width, width, kv_heads)}
        and width % 2 == 0
        and {weight.dtype for weight in model.parameters()} - {torch.int8} == {info.dtype}
        and type(base.embed_tokens) is nn.Embedding
        and getattr(base.rotary_emb, "rope_type", "") in ROPES
        and len(base.rotary_emb.inv_freq) * 2 == width
    )
