"""Exact calls on a GPU: a token's logits are bitwise identical in every call that computes them.

GPU libraries choose the order of additions by the shape of a call. So every call has the same
shape: it is padded to `ROWS` rows, and more tokens (of a prompt, a large tree or several sequences)
take several calls. Norms, activations and rotary embeddings then compute each row alike. The
remaining sums use kernels of our own, in which their order depends neither on a row's index nor on
the other rows:

- linear layers, the output head included: `triton_products.exact_product`, in fixed tiles;
- attention: `triton_exact.exact_attention`, which adds up keys in the order of their positions.

`make_exact_static` refuses models that use any other operator, and compares a random tree with
single steps bit by bit on the device. On a GPU, calls are captured as CUDA graphs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ouroboros.engine.attention import kernel_attention
from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.compiled_layers import CompiledLayers
from ouroboros.engine.eager import Eager, make_room
from ouroboros.engine.exact import CANNOT, TEXT, Operators, Reach, check_exact, check_operators
from ouroboros.engine.fused import is_hooked
from ouroboros.engine.joint import register
from ouroboros.engine.masks import Layout
from ouroboros.engine.static import NODES, Static, module_facts, padded_slots
from ouroboros.engine.tables import unpack_jointly
from ouroboros.engine.trial import why_different
from ouroboros.engine.triton_attention import TYPES
from ouroboros.engine.triton_exact import HEAD, PART, TAILS, WIDEST, exact_attention, triton
from ouroboros.tree import TokenTree

NAME = "ouroboros_exact_kernel"
ROWS = 64  # of every call
log = logging.getLogger(__name__)


class ExactStatic(Static):
    """The engine of exact calls on a GPU. Calls raise `ValueError` if modules have changed since it
    was made; replaced weights are used from the next sequence on. `backend`: of `torch.compile`,
    for the decoder layers (None: they are not compiled)."""

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        cache: SlotCache,
        *,
        backend: Any = "inductor",
    ) -> None:
        super().__init__(model, info, cache, compiled=False)
        self.compiled = CompiledLayers(model, backend=backend, exact=True)
        self.captures_jointly, self.rows = self.graphs, ROWS
        self.made: list[tuple] | None = None  # `module_facts` when the engine was checked

    @property
    def stale(self) -> bool:
        """Whether a module's class, hooks or plain attributes (see `module_facts`) have changed
        since the engine was checked at load. Changed weights do not count."""
        if self.made is None:
            return False
        return module_facts(self.model) != self.made or is_hooked(self.model)

    def new_slots(self) -> SlotCache:
        return self.shared.slab(self.cache.capacity)

    def run(
        self, known: int, missing: list[int], tree: TokenTree, *, held: int = 0
    ) -> torch.Tensor:
        return self.call(Layout(known, missing, tree, held))

    def call(
        self,
        layout: Layout,
        token: torch.Tensor | None = None,
        *,
        shape: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        self.cache.reserve(layout.base + len(layout.missing) + len(layout.tree) + 1)
        return self._call([(self.cache, layout)], self.cache, token)[0]

    def call_jointly(self, parts: Sequence[tuple[SlotCache, Layout]]) -> list[torch.Tensor]:
        return self._call(parts, self.shared.whole)

    def prepare(self, context: int, rows: int = 1) -> None:
        """Reserve slots for calls on up to `context` slots and, if `rows` > 1, for joint calls of
        that many sequences; on a GPU, also capture these calls."""
        most = padded_slots(context + NODES[-1])
        self.cache.reserve(most)
        if rows > 1:
            self.shared.grow(rows, most)
        nothing, slots = np.zeros((3, 0)), 0
        while self.graphs and slots < most:
            slots = padded_slots(slots + 1)
            for whole in (self.cache, self.shared.whole)[: 1 + (rows > 1)]:
                self._pass(nothing, [], nothing[:1, :, None], -(-slots // PART), whole)

    @property
    def _table_count(self) -> int:
        """Number of attention tables of a call: 2 if the model has full and sliding layers (the
        second is for sliding layers), else 1."""
        return 1 + (self.info.layer_types is not None)

    def _call(
        self,
        parts: Sequence[tuple[Any, Layout]],
        whole: SlotCache,
        token: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Score one or more layouts, each with its sequence's slots; return the logits of each,
        [rows, vocab]. The pools of the cache `whole` contain all these slots. `token` ([1], on the
        device), if given, replaces the first token id."""
        if any(not layout.base for _, layout in parts):
            self._follow_weights()
            if self.stale:
                raise ValueError("the model has changed: call prepack() on the CachedModel")
        make_room(parts)
        reaches = [Reach.of(layout, self.info.sliding_window) for _, layout in parts]
        n, width = sum(len(r.lengths) for r in reaches), max(r.tails.shape[1] for r in reaches)
        count = -(-padded_slots(max(int(r.lengths.max()) for r in reaches)) // PART)
        count, end, kept = max(count, -(-width // TAILS)), 0, list[int]()
        columns = np.zeros((3, n), dtype=np.int64)
        tables = np.zeros((self._table_count, n, HEAD + width), dtype=np.int32)
        for (slots, layout), reach in zip(parts, reaches, strict=True):
            start, end = end, end + len(reach.lengths)
            first, own = getattr(slots, "first", 0), tables[:, start:end]
            columns[0, start:end] = layout.known_ids(self.info.vocab_size)
            columns[1, start:end] = layout.positions()[layout.held :]
            columns[2, start:end] = first + layout.base + layout.held + np.arange(end - start)
            own[..., 0], own[..., 1], own[..., 2] = first, reach.lengths, reach.straight
            own[..., 3] = reach.first[-len(own) :]
            own[..., HEAD : HEAD + reach.tails.shape[1]] = reach.tails
            kept += [start + row for row in layout.rows]
        results = []
        for start in range(0, n, self.rows):
            piece = slice(start, start + self.rows)
            rows = [row - start for row in kept if start <= row < piece.stop]
            logits = self._pass(columns[:, piece], rows, tables[:, piece], count, whole, token)
            if rows:  # the next pass overwrites them
                logits = logits[: len(rows)]
                results.append(logits.clone() if piece.stop < n else logits)
        logits = results[0] if len(results) == 1 else torch.cat(results)
        return list(logits.split([len(layout.rows) for _, layout in parts]))

    def _pass(
        self,
        columns: np.ndarray,
        kept: list[int],
        tables: np.ndarray,
        count: int,
        whole: SlotCache,
        token: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the model once on n tokens, padded to `self.rows`; return [self.rows, vocab] logits,
        of which the first ones are those of the rows in `kept`.

        - `columns`: [3, n], the tokens' ids, positions and cache slots
        - `tables`: [tables, n, entries] int32, the slots attended to (see `triton_exact`)
        - `count`: number of parts, of PART positions each, that attention covers
        - `whole`: the cache that contains all these slots
        - `token`: replaces the first id, see `_call`
        """
        self.forwards += 1
        rows, entries, n = self.rows, HEAD + TAILS * count, columns.shape[1]
        shape = self._table_count, rows, entries
        words = np.zeros(4 * rows + -(-math.prod(shape) // 2), dtype=np.int64)
        head = words[: 4 * rows].reshape(4, rows)
        head[3] = whole.capacity - 1  # padding is written to a slot that is never read
        head[[0, 2, 3], :n], head[1, : len(kept)] = columns, kept
        padded = words[4 * rows :].view(np.int32)[: math.prod(shape)].reshape(shape)
        padded[:, :n, : tables.shape[2]] = tables

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            ids, own, positions, slots, mask = unpack_jointly(inputs, self.info, rows, entries)
            view = torch.arange(whole.capacity, device=inputs.device)
            with self._layers(), whole.fixed_slots(slots, view):
                return self.forward(ids[None], positions[None], mask, own, whole)

        return self._computed((count, whole is self.cache), words, rows, forward, token)


def attend_by_table(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attend with [1, heads, n, width] queries over [1, kv_heads, slots, width] keys and values;
    return [1, n, heads, width].

    With an int32 table as `attention_mask` (see `triton_exact`), attention is exact; raises
    `ValueError` for arguments that exact attention lacks. Other masks go to `kernel_attention`.
    """
    if attention_mask is None or attention_mask.dtype != torch.int32:
        return kernel_attention(module, query, key, value, attention_mask, scaling, **kwargs)
    for name in CANNOT:
        if kwargs.get(name) is not None:
            raise ValueError(f"exact attention has no {name}: load the model without exact=True")
    width = query.shape[-1]
    if any(part.shape[-1] != width or part.stride()[2:] != (width, 1) for part in (key, value)):
        raise ValueError("its attention reads keys or values in another shape than the cache holds")
    scale = width**-0.5 if scaling is None else scaling
    return exact_attention(query, key, value, attention_mask, scale), None


register(NAME, attend_by_table, sdpa_mask)


class RowOperators(Operators):
    """Refuses operators other than pointwise ones, views, our kernels and those listed here. In
    calls of one shape, these compute a row independently of its index and of the other rows."""

    REDUCTIONS = ("mean", "sum", "amax", "var_mean", "linalg_vector_norm")  # of the last axis
    ALLOWED = (
        "native_layer_norm",
        "_fused_rms_norm",
        "embedding",
        "index",
        "index_copy_",
        "_to_copy",
        "_unsafe_view",  # of products; torch does not mark it as a view
    )

    def refuses(self, func, args: tuple) -> bool:
        name = func._schema.name.split("::")[-1]
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if func.namespace == "ouroboros" or func.is_view or name in self.ALLOWED:
            return False
        if name in ("mm", "bmm"):  # rotary angles are products of one term
            return tensors[-2].shape[-1] > 1
        if name in self.REDUCTIONS:
            return list(args[1:2]) not in ([[-1]], [-1])
        return torch.Tag.pointwise not in func.tags and bool(tensors)


def make_exact_static(
    model: PreTrainedModel, info: ModelInfo, cache: SlotCache, backend: Any = "inductor"
) -> tuple[ExactStatic, str]:
    """Return the engine for exact calls on a GPU, and the reason if its layers are not compiled
    (else ""). Replaces the model's attention; overwrites the first slots.

    Raises `ValueError` with the reason if the model is not supported or its calls are not exact.
    """
    name, widths = type(model).__name__, {(s.key_width, s.value_width) for s in info.layers}
    devices = {weight.device for weight in model.parameters()}
    refusals = {
        "Triton is not installed": triton is None,
        f"{info.dtype} is not supported": info.dtype not in TYPES,
        f"it is on {len(devices)} devices": len(devices) > 1,
        "its attention cannot be replaced": not getattr(
            model, "_supports_attention_backend", False
        ),
        "its modules have hooks": is_hooked(model),
        f"the widths of its keys and values are {sorted(widths)}": any(
            key != value or key > WIDEST for key, value in widths
        ),
    }
    for reason, holds in refusals.items():
        if holds:
            raise ValueError(f"{name} cannot be exact on a GPU: {reason}; leave exact=False")
    model.set_attn_implementation(NAME)
    plain, reason = ExactStatic(model, info, cache, backend=None), ""
    captured, plain.graphs = plain.graphs, False
    check_operators(plain, RowOperators(model))
    plain.graphs = captured
    for engine in (ExactStatic(model, info, cache, backend=backend), plain):
        try:
            different = why_different(engine, Eager(model, info, cache))
            if different is not None:
                raise ValueError(f"{name} cannot be exact: {different}; leave exact=False")
            check_exact(engine, PART + TEXT, jointly=True)
        except ValueError as error:
            reason = reason or f"layers are not compiled: {error}"
            log.warning("%s: %s", name, error)
            if engine is plain:
                raise
        else:
            break
    engine.made = module_facts(model)
    return engine, reason
