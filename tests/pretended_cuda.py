"""Streams, events and graphs of `torch.cuda` on a CPU.

A graph remembers the operations that were made while it was captured, and its replay makes them
again from the same memory into the same memory, as a device does: what an operation was given that
is not a tensor stays as it was.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")


class Stream:
    def __init__(self, device=None) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Event:
    """Each later event is one millisecond later."""

    now = 0

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0

    def record(self) -> None:
        Event.now += 1
        self.at = Event.now

    def synchronize(self) -> None:
        """Everything is done already."""

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


class Graph:
    streams: ClassVar[set[int]] = set()

    def __init__(self) -> None:
        self.made: list[tuple] = []

    def replay(self) -> None:
        for function, args, kwargs, results in self.made:
            again = tree_leaves(function(*args, **kwargs))
            if function._schema.is_mutable:
                continue
            for result, new in zip(results, again, strict=True):
                if torch.is_tensor(result) and result.data_ptr() != new.data_ptr():
                    result.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name() in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        found = function(*args, **(kwargs or {}))
        self.graph.made.append((function, args, kwargs or {}, tree_leaves(found)))
        return found


@contextmanager
def capture(graph: Graph, *, pool, stream: Stream):
    Graph.streams.add(id(stream))
    with _Capture(graph):
        yield


def pretend(monkeypatch) -> None:
    """Put these in the place of torch's own."""
    Graph.streams, current = set(), Stream()
    for name, own in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda: current,
        "graph_pool_handle": object,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, own)
