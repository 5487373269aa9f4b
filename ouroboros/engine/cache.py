"""A KV cache of preallocated slots, behind transformers' `Cache` interface.

New keys and values are written in place after the slots in use. Accepting a path moves its slots
together; a rollback only changes the length. Tensors are reallocated, at twice the size, only when
they are full. For calls that are captured as CUDA graphs, `SlotCache.fixed_slots` sets the slots to
write by a device tensor, and fixes the number of slots to read.

Invariant: slots `0 ... length - 1` of every layer hold the same tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from weakref import WeakValueDictionary

import torch
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


@dataclass(frozen=True)
class LayerShape:
    """Heads, widths, dtype and device of one layer's keys and values."""

    kv_heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model, as found by `check_tree_support`.

    - `max_len`: number of usable positions
    - `sliding_window`: None without one
    - `layer_types`: "full_attention" or "sliding_attention" for each layer; None if all are the
      same
    - `layers`: the KV cache shape of each layer
    - `text`: token ids for trial calls, such as the model itself would write
    - `rounding`: how far the model's own rounding moves the logits of this text (`logit_error`)
    """

    max_len: int
    sliding_window: int | None
    layer_types: tuple[str, ...] | None
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    layers: list[LayerShape]
    text: tuple[int, ...] = ()
    rounding: float = 0.0

    @property
    def tolerance(self) -> float:
        """The largest `logit_error` allowed between two engines, which both round."""
        return max(tolerance(self.dtype), 4 * self.rounding)


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest allowed `logit_error` between two calls."""
    return 5e-4 if dtype in (torch.float32, torch.float64) else 0.1


def logit_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square difference between two calls' logits, in standard deviations of
    `expected`. Unlike the largest difference, it varies little with text and kernels."""
    return ((found - expected).square().mean().sqrt() / expected.std().clamp_min(1e-6)).item()


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name of the KV cache's argument in a model's `forward`: "cache" since transformers
    5.24, "past_key_values" before."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class SlotLayer(DynamicLayer):
    """One layer's view of the shared tensors. `keys` and `values` are [1, heads, capacity, width];
    the first `length` slots are in use."""

    _layer_type = None  # keeps it out of transformers' registry of layer types
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Write after the slots in use; return views of all slots up to the last one written."""
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length


@dataclass(eq=False)
class FixedSlotsLayer:
    """One layer of a cache within `SlotCache.fixed_slots`. All layers have the same fields, so that
    they share compiled code.

    `keys` and `values` are [kv_heads, capacity, width]; `written` ([nodes] int64) has the slots to
    write; the length of `read` is the number of slots to read.
    """

    keys: torch.Tensor
    values: torch.Tensor
    written: torch.Tensor
    read: torch.Tensor

    def update(self, key_states, value_states, *args, **kwargs):
        """Write keys and values, [1, kv_heads, nodes, width]; return those of all slots to read."""
        self.keys.index_copy_(1, self.written, key_states[0])
        self.values.index_copy_(1, self.written, value_states[0])
        slots = len(self.read)
        return self.keys[None, :, :slots], self.values[None, :, :slots]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: captured code must not depend on the length."""
        return 0


Pools = dict[LayerShape, tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of all layers of a shape, each [layers, kv_heads, slots, width]."""


def allocate(shapes: Mapping[LayerShape, Sequence[int]], slots: int) -> Pools:
    """Return pools of `slots` slots. `shapes` maps each layer shape to the indices of its layers.

    Pools are zeroed, because NaNs in uninitialised memory would pass through a mask. They are never
    inference tensors, which would make compiled layers recompile.
    """
    pools = {}
    for shape, members in shapes.items():
        size = len(members), shape.kv_heads, slots
        kind: dict = {"dtype": shape.dtype, "device": shape.device}
        with torch.inference_mode(False):
            keys = torch.zeros(*size, shape.key_width, **kind)
            values = torch.zeros(*size, shape.value_width, **kind)
        pools[shape] = keys, values
    return pools


class SlotCache(Cache):
    """The KV cache of all layers, with one slot per token.

    Layers of the same shape and device share one tensor for keys and one for values. So keeping an
    accepted path takes two copies per shape, not two per layer.
    """

    def __init__(self, shapes: list[LayerShape], capacity: int = 512) -> None:
        self.slots = [SlotLayer() for _ in shapes]
        super().__init__(layers=list(self.slots))
        self.groups = {s: [i for i, other in enumerate(shapes) if other == s] for s in shapes}
        self.pools: Pools = {}
        self.capacity = self.length = 0
        self._fixed: tuple[torch.Tensor, torch.Tensor] | None = None
        self.reserve(capacity)

    @contextmanager
    def fixed_slots(self, written: torch.Tensor, read: torch.Tensor) -> Iterator[None]:
        """Context manager: write keys and values to the slots `written` ([nodes] int64, on the
        device), and read slots 0 to len(read) - 1, whatever the cache's length. `read` is a tensor
        so that compiled code treats its length as dynamic; its values are not used."""
        self._fixed = written, read
        try:
            yield
        finally:
            self._fixed = None

    def update(self, key_states, value_states, layer_idx: int, *args, **kwargs):
        """Write one layer's keys and values, [1, kv_heads, nodes, width]; return those to read."""
        layer = self.slots[layer_idx] if self._fixed is None else self.fixed_layer(layer_idx)
        return layer.update(key_states, value_states)

    def fixed_layer(self, layer_idx: int) -> FixedSlotsLayer:
        """Return one layer's keys and values, with the slots that `fixed_slots` set."""
        assert self._fixed is not None
        written, read = self._fixed
        layer = self.slots[layer_idx]
        written = written.to(layer.keys.device)
        return FixedSlotsLayer(layer.keys[0], layer.values[0], written, read)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of slots in use; 0 within `fixed_slots`, because captured code must not
        depend on the length."""
        return 0 if self._fixed is not None else super().get_seq_length(layer_idx)

    def reserve(self, slots: int) -> None:
        """Grow the capacity to at least `slots`, at least doubling it; keep the slots in use."""
        if slots > self.capacity:
            self.capacity = max(slots, 2 * self.capacity)
            self.move_to(allocate(self.groups, self.capacity))

    def move_to(self, pools: Pools) -> None:
        """Use other pools of `capacity` slots from now on; copy the slots in use to them."""
        for shape, members in self.groups.items():
            for new, old in zip(pools[shape], self.pools.get(shape, ()), strict=False):
                new[:, :, : self.length] = old[:, :, : self.length]
            keys, values = pools[shape]
            for row, index in enumerate(members):
                self.slots[index].keys = keys[row : row + 1]
                self.slots[index].values = values[row : row + 1]
        self.pools = pools

    def clear(self) -> None:
        """Zero every slot, before timing: reading memory that was never written can be faster."""
        self.set_length(0)
        for keys, values in self.pools.values():
            keys.zero_()
            values.zero_()

    def set_length(self, length: int) -> None:
        """Set the number of slots in use; later slots may be overwritten."""
        self.length = length
        for layer in self.slots:
            layer.length = length

    def keep(self, slots: list[int], start: int) -> None:
        """Move `slots` (ascending) to `start`, `start + 1`, ...; drop all slots after them."""
        end = start + len(slots)
        if slots[-1] >= end:
            with torch.inference_mode():
                for shape, (keys, values) in self.pools.items():
                    pinned = shape.device.type == "cuda"  # pageable memory would block
                    index = torch.tensor(slots, device="cpu", pin_memory=pinned)
                    index = index.to(shape.device, non_blocking=True)
                    keys[:, :, start:end] = keys.index_select(2, index)
                    values[:, :, start:end] = values.index_select(2, index)
        self.set_length(end)


class Slab(SlotCache):
    """One sequence's slots in pools shared by several: `capacity` slots from slot `first` on."""

    def __init__(self, shapes: list[LayerShape], shared: SharedSlots, index: int) -> None:
        self.shared, self.index = shared, index
        super().__init__(shapes, 0)

    @property
    def first(self) -> int:
        return self.index * self.capacity

    def reserve(self, slots: int) -> None:
        if slots > self.capacity:
            self.shared.grow(0, slots)

    def place(self) -> None:
        """Move to this slab's part of the shared pools."""
        self.capacity = self.shared.size
        span = slice(self.first, self.first + self.capacity)
        pools = self.shared.whole.pools.items()
        self.move_to({shape: (k[:, :, span], v[:, :, span]) for shape, (k, v) in pools})


class SharedSlots:
    """Pools shared by several sequences, with a slab of `size` slots for each, so that captured
    calls find all of them at fixed addresses. `whole` is the cache that owns the pools. The slab of
    a dropped sequence is reused. The slot after the last slab is for padding: it is written but
    never read."""

    def __init__(self, shapes: list[LayerShape]) -> None:
        self.whole, self.shapes = SlotCache(shapes, 1), shapes
        self.count = self.size = 0
        self.slabs: WeakValueDictionary[int, Slab] = WeakValueDictionary()

    def slab(self, slots: int) -> Slab:
        """Return a free slab of at least `slots` slots."""
        index = next(index for index in count() if index not in self.slabs)
        self.grow(index + 1, slots)
        slab = self.slabs[index] = Slab(self.shapes, self, index)
        slab.place()
        return slab

    def grow(self, slabs: int, slots: int) -> None:
        """Grow to at least `slabs` slabs of at least `slots` slots each. A number that must grow is
        at least doubled."""
        wanted, now = (slabs, slots), (self.count, self.size)
        if any(want > had for want, had in zip(wanted, now, strict=True)):
            self.count, self.size = (
                max(want, 2 * had) if want > had else had
                for want, had in zip(wanted, now, strict=True)
            )
            self.whole.capacity = self.count * self.size + 1
            self.whole.move_to(allocate(self.whole.groups, self.whole.capacity))
            for slab in self.slabs.values():
                slab.place()
