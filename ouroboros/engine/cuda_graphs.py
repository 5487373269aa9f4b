"""Computations captured as CUDA graphs, and how long a replay takes.

Invariant: everything is captured on one side stream, and nothing that waits for the device is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch


class CapturedGraph(NamedTuple):
    """A captured computation: a replay repeats it on the present values of `inputs`."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    result: torch.Tensor


def capture(
    compute: Callable, inputs: tuple[torch.Tensor, ...], device: torch.device, pool: Any
) -> CapturedGraph:
    """Capture `compute(*inputs)` in the memory of `pool`. Raises `RuntimeError`, before anything is
    captured, if it waits for the device."""
    side, graph = side_stream(device), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compute(*inputs)
        with _no_waits():
            compute(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, pool=pool, stream=side):
        result = compute(*inputs)
    return CapturedGraph(graph, inputs, result)


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream for captures: each stream costs a cuBLAS workspace."""
    return torch.cuda.Stream(device)


def replay_ms(graph: torch.cuda.CUDAGraph, rounds: int = 5) -> float:
    """Return the milliseconds of the fastest of `rounds` replays, by the device's clock."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for mark in marks:
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return min(start.elapsed_time(end) for start, end in pairwise(marks))


@contextmanager
def _no_waits() -> Iterator[None]:
    """Raise an error where the context waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
