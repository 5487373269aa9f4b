"""Run Llama-like decoders on a CPU by one compiled kernel.

A call of up to 128 rows is a single kernel (`ouroboros.engine.cpu_kernels`), which multiplies by
packed weights (`ouroboros.engine.prepack`), so it spends almost all its time reading them. A row's
result does not depend on the other rows. So these calls are always exact: a token's logits are
bitwise identical in every call.

`fuse` recognises models that are built like Llama and compares their logits with those of
transformers' modules; for any other model it returns None. The model is unchanged: small weights
are read in place, packed weights are copies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.cpu_kernels import SLEEP, TEAM, kernels
from ouroboros.engine.eager import Eager, Part, make_room
from ouroboros.engine.exact import Reach, check_exact, is_sliding
from ouroboros.engine.joint import SERVED
from ouroboros.engine.prepack import (
    MOST,
    PackedWeights,
    Unit,
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
NORMS = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")
PRODUCTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
"""A layer's norms, of which it may lack the last two, and its linear layers, by their input."""
OWNERS = {"torch", "transformers"}  # packages whose modules have known implementations
ANGLES = 64  # positions whose rotary angles are computed together
log = logging.getLogger(__name__)


class Fused(Eager):
    """The engine that calls the kernel. `table` [layers, fields] has the addresses of each layer's
    weights."""

    feeds_apart = False

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        cache: SlotCache,
        packed: PackedWeights,
    ) -> None:
        super().__init__(model, info, cache)
        base, self.packed = cast(Any, model.model), packed
        self.norm, self.head = base.norm.weight.detach(), packed[(model.lm_head,)]  # type: ignore
        self.embeddings, self.rotary = base.embed_tokens.weight.detach(), base.rotary_emb
        self.scale = _bits(base.layers[0].self_attn.scaling)
        self.eps = _bits(base.norm.variance_epsilon)
        self.cos = self.sin = torch.empty(0, device="cpu")
        layers, shape = [_parts(layer) for layer in base.layers], info.layers[0]
        self.width, self.inner = self.norm.numel(), layers[0]["gate_proj"].out_features
        attended = layers[0]["q_proj"].out_features
        self.heads = attended // shape.key_width
        qkv = attended + 2 * shape.kv_heads * shape.key_width
        widths = (self.width, self.width, qkv, attended, attended, self.width)
        self.buffers = [  # scratch memory of the kernel, in the order of its arguments
            self.cos.new_empty(MOST, width, dtype=torch.float32 if index == 3 else info.dtype)
            for index, width in enumerate((*widths, 2 * self.inner, self.inner))
        ]
        self.addresses = [buffer.data_ptr() for buffer in self.buffers]
        rows = [
            [own[name].weight.data_ptr() if name in own else 0 for name in NORMS]
            + [int(is_sliding(at, info))]
            + [address for unit in _units(own) for address in packed[unit].addresses]
            for at, own in enumerate(layers)
        ]
        self.table = np.array(rows, dtype=np.int64)
        # one buffer for all calls: new memory would first be cleared by the system
        self.logits = self.cos.new_empty(MOST, self.head.shape[0], dtype=info.dtype)

    def call(self, parts: Sequence[Part], token: torch.Tensor | None = None) -> list[torch.Tensor]:
        """See `Eager.call`. Inputs are prepared in NumPy, which takes less time than torch. More
        than `MOST` rows are fed in several calls of the kernel."""
        self.forwards += 1
        make_room(parts)
        ids, positions, kept = list[int](), list[np.ndarray](), list[int]()
        starts, reaches = list[int](), list[Reach]()
        for _, layout in parts:
            starts.append(len(ids))
            kept += [len(ids) + row for row in layout.rows]
            ids += layout.known_ids(self.info.vocab_size)
            positions.append(layout.positions()[layout.held :])
            reaches.append(Reach.of(layout, self.info.sliding_window))
        if token is not None:
            ids[0] = int(token)
        fed, wanted, reach = np.array(ids), np.array(kept), Reach.joined(reaches)
        places = positions[0] if len(parts) == 1 else np.concatenate(positions)
        self._extend_angles(int(places.max()))
        found, whole = list[torch.Tensor](), len(ids) <= MOST
        for start in range(0, len(ids), MOST):
            rows, inside = slice(start, min(start + MOST, len(ids))), wanted
            if not whole:
                inside = wanted[(start <= wanted) & (wanted < rows.stop)] - start
            sequences = [
                [
                    *(max(first, start) - start, min(first + layout.fed, rows.stop) - start),
                    *(slots.length + max(0, start - first), slots.capacity),
                    *(slots.slots[0].keys.data_ptr(), slots.slots[0].values.data_ptr()),
                ]
                for first, (slots, layout) in zip(starts, parts, strict=True)
                if first < rows.stop and first + layout.fed > start
            ]
            own = reach if whole else reach.of_rows(rows)
            logits = self._by_kernel(fed[rows], places[rows], sequences, own, inside)
            found.append(logits if whole else logits.clone())
        logits = found[0] if len(found) == 1 else torch.cat(found)
        return [logits] if len(parts) == 1 else list(logits.split([len(p.rows) for _, p in parts]))

    def _by_kernel(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        sequences: list[list[int]],
        reach: Reach,
        kept: np.ndarray,
    ) -> torch.Tensor:
        """Return the logits of the rows `kept` (ascending indices), [kept, vocab], from one call of
        the kernel. `ids` and `positions` are [rows]; all arrays are int64. Each of `sequences` has
        its first row and the row after its last, the slot of the first, its capacity in slots, and
        the addresses of its keys and values."""
        table, head, shape = self.table, self.head, self.info.layers[0]
        cached, tails = np.array(sequences), reach.tails
        logits = self.logits[: len(kept)]
        # two integers for each stage of the kernel (see its `_wait`): nine a layer, three more
        counters, threads = np.zeros(18 * len(table) + 6, dtype=np.int64), torch.get_num_threads()
        kernels(self.info.dtype).decode(
            *(threads, len(ids), self.width, self.heads, shape.kv_heads),
            *(shape.key_width, self.inner, self.eps, self.scale, self.info.dtype.itemsize),
            *(_start(table), len(table), _start(cached), len(cached)),
            *(TEAM if threads > 1 else 0, _start(counters), SLEEP, _start(ids), _start(positions)),
            *(self.embeddings.data_ptr(), len(self.embeddings)),
            *(self.cos.data_ptr(), self.sin.data_ptr(), len(self.cos), _start(kept), len(kept)),
            *(self.norm.data_ptr(), *head.addresses, logits.data_ptr(), head.shape[0]),
            *(*self.addresses, _start(reach.lengths), _start(reach.straight)),
            *(_start(tails), tails.shape[1], _start(reach.first)),
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
    assert array.dtype == np.int64 and array.flags.c_contiguous
    return array.__array_interface__["data"][0]


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _parts(layer: Any) -> dict[str, Any]:
    """Return the modules in a decoder layer, its attention and its MLP, by name."""
    return layer._modules | layer.self_attn._modules | layer.mlp._modules


def _units(parts: dict[str, Any]) -> list[Unit]:
    return [tuple(parts[name] for name in unit) for unit in PRODUCTS]


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
        groups = [unit for layer in cast(Any, model.model).layers for unit in _units(_parts(layer))]
        packed = prepack_linears(model, every=True, timed=timed, groups=groups)
        if not packed:
            return None, "packed weights are not faster on this machine, or do not fit"
        engine, modules = Fused(model, info, cache, packed), Eager(model, info, cache)
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
    norms, linears = [base.norm], [model.lm_head]
    for parts in map(_parts, base.layers):
        own = NORMS[:2] if parts.keys().isdisjoint(NORMS[2:]) else NORMS
        names = [name for unit in PRODUCTS for name in unit]
        if {*parts} != {*own, *names, "self_attn", "mlp", "act_fn"}:
            return False
        if type(parts["act_fn"]).__name__ not in ("SiLU", "SiLUActivation"):
            return False
        norms += [parts[name] for name in own]
        linears += [parts[name] for name in names]
    if not all(can_be_packed(linear, {}) or can_pack_int8(linear) for linear in linears):
        return False
    eps = {getattr(norm, "variance_epsilon", None) for norm in norms}
    scales = {layer.self_attn.scaling for layer in base.layers}
    width, kv_heads = info.layers[0].key_width, info.layers[0].kv_heads
    shapes = {(shape.key_width, shape.value_width, shape.kv_heads) for shape in info.layers}
    return (
        len(base.layers) == len(info.layers)  # else the config leaves some out
        and len(eps) == len(scales) == 1
        and None not in eps
        and shapes == {(width, width, kv_heads)}
        and width % 2 == 0
        and {weight.dtype for weight in model.parameters()} - {torch.int8} == {info.dtype}
        and type(base.embed_tokens) is nn.Embedding
        and getattr(base.rotary_emb, "rope_type", "") in ROPES
        and len(base.rotary_emb.inv_freq) * 2 == width
    )
