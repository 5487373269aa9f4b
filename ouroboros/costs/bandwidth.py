"""What any call must read, and how fast this machine copies: the floor under measured costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ouroboros.costs.surface import Costs, Footprint
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import bytes_of, stored_bytes

CPU_BYTES = 512 << 20  # of a copied buffer: many times the largest cache
GPU_BYTES = 4 << 30  # a copy takes milliseconds, so that its start is nothing of it
COPIES = 8


def with_floor(costs: Costs, models: Sequence[CachedModel]) -> Costs:
    """Return the costs of models, target first, with their bytes and this machine's bandwidth."""
    return replace(
        costs,
        footprints=dict(zip(("target", "draft"), map(footprint, models), strict=False)),
        copy_bytes_per_s=copy_bandwidth(models[0].device),
    )


def copy_bandwidth(device: torch.device, *, buffer_bytes: int | None = None) -> float:
    """Return how many bytes a second a copy within the device's memory reads and writes together.

    The fastest of several copies counts, as in STREAM (McCalpin,
    https://www.cs.virginia.edu/stream/ref.html): others on the machine only slow a copy down. On a
    CPU a store may read its line first, which is not counted, so that reading alone can be faster
    than this. A GPU's own events are the clock there. `buffer_bytes` defaults to many times the
    largest cache, on a GPU to 4 GiB, or a quarter of what is free.
    """
    size = buffer_bytes or _buffer_bytes(device)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(source)
    seconds = [elapsed_ms(lambda: there.copy_(source), device) / 1e3 for _ in range(COPIES)]
    if device.type == "cuda":  # graphs take memory of their own
        source, there = source.new_empty(0), there.new_empty(0)
        torch.cuda.empty_cache()
    return 2 * size / min(seconds[1:])


def elapsed_ms(work: Callable[[], object], device: torch.device) -> float:
    """Return milliseconds of some work: on a GPU between two events there, else by the clock."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - started)
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
    return first.elapsed_time(last)


def footprint(model: CachedModel) -> Footprint:
    """Return the bytes of a model's weights, as they are stored, and of a token's keys and
    values."""
    held = sum(map(stored_bytes, model.model.parameters()))
    slots = (
        len(members) * shape.kv_heads * (shape.key_width + shape.value_width) * shape.dtype.itemsize
        for shape, members in model.cache.groups.items()
    )
    return Footprint(held, bytes_of(model.model), sum(slots))


def _buffer_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_BYTES
    return min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
