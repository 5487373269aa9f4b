"""Score trees of several sequences in one call of a model; each sequence has its own cache slots.

The fed tokens of all sequences are concatenated into one row, [1, total], so nothing is padded.
Keys and values are written to each sequence's slots, and attention runs sequence by sequence with
that sequence's mask. On a GPU, joint calls are captured if possible (`ouroboros.engine.tables`).

Joint calls need an attention function registered here. Invariant: up to rounding, a token's logits
are those of a call for its sequence alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache

from ouroboros.engine.cache import ModelInfo, SlotCache, SlotLayer
from ouroboros.engine.masks import Layout

SERVED: set[str] = set()  # names of the attention functions that support joint calls


class Share(NamedTuple):
    """One sequence in a joint call: its cache slots, its layout, the range `fed` of its tokens
    among the call's tokens, and its attention mask (one for all layers, or a dict by layer
    type)."""

    slots: SlotCache
    layout: Layout
    fed: slice
    mask: Any


class _Current(threading.local):
    """The joint call in progress in this thread."""

    cache: JointCache | None = None


current = _Current()


class JointCache(Cache):
    """Writes the keys and values of a joint call to the slots of each sequence. `layer` is the
    index of the layer last written; `seen` has that layer's keys and values of each sequence.
    `masks` has each sequence's attention mask."""

    def __init__(
        self, info: ModelInfo, parts: Sequence[tuple[SlotCache, Layout]], masks: Sequence[Any]
    ) -> None:
        super().__init__(layers=[SlotLayer() for _ in info.layers])
        self.info, self.shares, self.layer = info, list[Share](), 0
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        end = 0
        for (slots, layout), mask in zip(parts, masks, strict=True):
            start, end = end, end + layout.fed
            self.shares.append(Share(slots, layout, slice(start, end), mask))

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Context manager: while it is active, attention runs sequence by sequence."""
        current.cache = self
        try:
            yield
        finally:
            current.cache = None

    def update(self, key_states, value_states, layer_idx: int, *args, **kwargs):
        """Write one layer's keys and values, [1, kv_heads, fed tokens, width], to each sequence's
        slots; return the arguments unchanged."""
        self.layer = layer_idx
        self.seen = [
            share.slots.slots[layer_idx].update(
                key_states[:, :, share.fed], value_states[:, :, share.fed]
            )
            for share in self.shares
        ]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens the shortest sequence has cached: 0 if one begins in this call."""
        return min(share.layout.base for share in self.shares)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return placeholder sizes: joint calls build no shared mask."""
        return query_length, 0


def register(name: str, attend: Callable, make_mask: Callable) -> None:
    """Register an attention function and its mask function with transformers. In joint calls
    `attend` runs once per sequence, and `make_mask` is skipped."""

    def attention(module, query, key, value, attention_mask, *args, **kwargs):
        cache = current.cache
        if cache is None:
            return attend(module, query, key, value, attention_mask, *args, **kwargs)
        if kwargs.get("position_bias") is not None:
            raise ValueError("its attention uses a position_bias")
        cached = cache.seen[0][0]
        if key.shape[1] != cached.shape[1] or key.shape[3] != cached.shape[3]:
            raise ValueError("its attention reads keys in another shape than the cache holds")
        types, parts = cache.info.layer_types, []
        for share, (keys, values) in zip(cache.shares, cache.seen, strict=True):
            mask = share.mask
            if isinstance(mask, dict) and types is not None:
                mask = mask[types[cache.layer]]
            own = query[:, :, share.fed]
            parts.append(attend(module, own, keys, values, mask, *args, **kwargs)[0])
        return torch.cat(parts, dim=1), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(
        name, lambda *args, **kwargs: None if current.cache else make_mask(*args, **kwargs)
    )
    SERVED.add(name)
