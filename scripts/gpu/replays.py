"""What a GPU does between the first kernel and the last: what a call is made of, how idle it is.

On a CPU there are no replays: a table has the CPU's operators, and the idle share is not known.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from ouroboros.costs.timing import random_tree
from ouroboros.decode import Drafter, decode
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector, argmax
from ouroboros.tree import TokenTree

TOP = 24  # rows of a table
TIMES = 3  # calls under the profiler

Span = tuple[torch.cuda.Event, torch.cuda.Event]


def kernel_table(model: CachedModel, nodes: int, context: int) -> dict:
    """Return what one call of so many nodes after so many tokens consists of: `call_ms` as timed
    without the profiler, `kernels_ms`, and rows of name, ms and count, the longest first."""
    shape = random_tree(nodes, draw=random.Random(nodes))
    text = [7] * context
    tree = TokenTree((text[-1], *shape.tokens[1:]), shape.parents)

    def call() -> float:
        model.cache.reserve(context + nodes)
        sequence = model.new_sequence(cached=text[:-1])
        started = time.perf_counter()
        argmax(model.score(sequence, text, tree), text, tree)
        return 1e3 * (time.perf_counter() - started)

    call_ms = min(call() for _ in range(TIMES + 1))
    on_gpu = model.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(TIMES):
            call()
    model.empty()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    found = [(e.key, getattr(e, own) / 1e3 / TIMES, e.count / TIMES) for e in seen.key_averages()]
    found = sorted((row for row in found if row[1] > 0), key=lambda row: -row[1])
    return {
        "nodes": nodes,
        "context": context,
        "call_ms": call_ms,
        "kernels_ms": sum(ms for _, ms, _ in found),
        "rows": [{"name": name, "ms": ms, "count": count} for name, ms, count in found[:TOP]],
    }


def idle_share(
    target: CachedModel,
    make: Callable[[], Drafter],
    prompt: Sequence[int],
    *,
    max_new: int,
    choose: TokenSelector = argmax,
) -> float | None:
    """Return the share of a text's time, after its first tokens, in which no graph of either model
    was being replayed; None where there are no graphs."""
    if target.device.type != "cuda":
        return None
    for model in (target, getattr(make(), "draft", None)):
        if isinstance(model, CachedModel):
            model.empty()
    drafter = make()
    begun = decode(target, drafter, list(prompt), max_new=8, choose=choose)
    torch.cuda.synchronize(target.device)
    with replays() as spans:
        started = time.perf_counter()
        decode(target, drafter, begun.tokens, max_new=max_new, choose=choose)
        torch.cuda.synchronize(target.device)
        wall_ms = 1e3 * (time.perf_counter() - started)
    return 1 - sum(first.elapsed_time(last) for first, last in spans) / wall_ms if spans else None


@contextmanager
def replays() -> Iterator[list[Span]]:
    """Note two events around every replay of a graph, for as long as the context lasts."""
    spans: list[Span] = []
    replay = torch.cuda.CUDAGraph.replay

    def noted(graph: torch.cuda.CUDAGraph) -> None:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        replay(graph)
        last.record()
        spans.append((first, last))

    torch.cuda.CUDAGraph.replay = noted  # type: ignore[method-assign, assignment]
    try:
        yield spans
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
