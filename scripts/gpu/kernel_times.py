"""Show what a GPU does in a call: its kernels, the time of attention alone, and how idle it is.

    python scripts/gpu/kernel_times.py OUT --shapes yi-34b yi-6b

OUT/kernel_times.json has the copy bandwidth, tables of the kernels of some calls, times of our
attention and of torch's, and the share of a text's decoding in which no graph is replayed. On a CPU
there are no replays: a table has the CPU's operators, and the idle share is null.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from attention_trial import attention_times
from torch.profiler import ProfilerActivity, profile

from ouroboros import Ouroboros
from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.costs.timing import copy_bandwidth, random_tree
from ouroboros.decode import Drafter, RootOnly, decode
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector, argmax
from ouroboros.tree import TokenTree

CALLS = (("target", 1), ("target", 24), ("draft", 1), ("draft", 48))
PROMPT = 'def median(values):\n    """Return the median of a list of numbers."""\n'
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", nargs="+", help="of the target and the draft")
    parser.add_argument("--small", action="store_true", help="a rehearsal's sizes")
    args = parser.parse_args()
    standin = dict(zip(("target", "draft"), args.shapes, strict=True)) if args.shapes else None
    engine: Literal["static", "auto"] = "static" if args.small else "auto"
    names = ("reference", "reference/target", "reference/draft")
    pair = load_pair(
        PairSpec(*names, dtype="bfloat16", standin=standin, engine=engine), with_draft=True
    )
    assert pair.draft is not None
    target, draft, device = pair.target, pair.draft, pair.target.device
    grid: dict[str, Any] = {"layouts": [[56, 8], [32, 4]], "nodes": [1, 8, 32, 128, 256]}
    grid |= {"slots": [512, 2048, 8192, 16384]}
    if args.small:
        grid = {"layouts": [[14, 2]], "nodes": [1, 8], "slots": [512], "repeats": 1}
    prompt = target.tokenizer(PROMPT).input_ids
    drafters: dict[str, Callable[[], Drafter]] = {
        "greedy": RootOnly,
        "ouroboros": lambda: Ouroboros(draft),
    }
    max_new = 16 if args.small else 256
    found = {
        "copy_gb_per_s": copy_bandwidth(device) / 1e9,
        "idle_share": {
            name: idle_share(target, make, prompt, max_new=max_new)
            for name, make in drafters.items()
        },
        "calls": {
            f"{role} {nodes}": kernel_table(target if role == "target" else draft, nodes, 512)
            for role, nodes in CALLS
        },
        "attention": attention_times(device, torch.bfloat16, **grid),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "kernel_times.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
