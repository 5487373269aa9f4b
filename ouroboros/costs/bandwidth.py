"""What any call must read, and how fast this machine copies: the floor under measured costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from ouroboros.costs.surface import Costs, Footprint
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import bytes_of, stored_bytes

CACHES = 16  # a copied buffer is so many times larger than the largest cache is taken to be
LARGEST_CACHE_BYTES = {"cpu": 32 << 20, "cuda": 64 << 20}


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
    than this. `buffer_bytes` defaults to many times the largest cache.
    """
    size = buffer_bytes or CACHES * LARGEST_CACHE_BYTES.get(device.type, 64 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        _wait(device)
        started = time.perf_counter()
        there.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * size / min(seconds[1:])


def footprint(model: CachedModel) -> Footprint:
    """Return the bytes of a model's weights, as they are stored, and of a token's keys and
    values."""
    held = sum(map(stored_bytes, model.model.parameters()))
    slots = (
        len(members) * shape.kv_heads * (shape.key_width + shape.value_width) * shape.dtype.itemsize
        for shape, members in model.cache.groups.items()
    )
    return Footprint(held, bytes_of(model.model), sum(slots))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
