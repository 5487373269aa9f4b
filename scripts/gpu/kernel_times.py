"""Show what a GPU does in a call: its kernels, and its idle share while a text is decoded.

    python scripts/gpu/kernel_times.py OUT --shapes yi-34b yi-6b

OUT/kernel_times.json has the copy bandwidth, tables of the kernels in some calls, and the share of
decoding time in which no graph is replayed (null on a CPU, where tables list operators).
"""

from __future__ import annotations

import json
import random
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from unittest.mock import patch

import torch
from shapes import load_shapes
from torch.profiler import ProfilerActivity, profile

from ouroboros import Ouroboros
from ouroboros.core.select import argmax
from ouroboros.core.tree import TokenTree
from ouroboros.costs.timing import copy_bandwidth, random_tree
from ouroboros.decode import Drafter, RootOnly, decode
from ouroboros.engine.model import CachedModel

CALLS = (("target", 1), ("target", 24), ("draft", 1), ("draft", 48))
CONTEXT = 512
PROMPT = 'def median(values):\n    """Return the median of a list of numbers."""\n'
TOP = 24  # rows of a table
TIMES = 3  # profiled calls


def kernel_table(model: CachedModel, nodes: int) -> dict:
    """Return the profile of one call on `nodes` nodes: `call_ms`, timed without the profiler,
    `kernels_ms`, and rows of name, ms and count, longest first."""
    shape, text = random_tree(nodes, draw=random.Random(nodes)), [7] * CONTEXT
    tree = TokenTree((text[-1], *shape.tokens[1:]), shape.parents)
    model.cache.reserve(CONTEXT + nodes)

    def call() -> float:
        sequence = model.new_sequence(cached=text[:-1])
        started = time.perf_counter()
        argmax(model.score(sequence, text, tree), text, tree)
        return 1e3 * (time.perf_counter() - started)

    call_ms = min(call() for _ in range(TIMES + 1))
    kind = "cuda" if model.device.type == "cuda" else "cpu"
    with profile(activities=[getattr(ProfilerActivity, kind.upper())]) as seen:
        for _ in range(TIMES):
            call()
    model.empty()
    time_us = "self_device_time_total" if kind == "cuda" else "self_cpu_time_total"
    rows = [
        {"name": one.key, "ms": getattr(one, time_us) / 1e3 / TIMES, "count": one.count / TIMES}
        for one in seen.key_averages()
    ]
    rows.sort(key=lambda row: -row["ms"])
    kernels_ms = sum(row["ms"] for row in rows)
    return {"nodes": nodes, "call_ms": call_ms, "kernels_ms": kernels_ms, "rows": rows[:TOP]}


def idle_share(
    target: CachedModel, drafter: Drafter, prompt: list[int], *, max_new: int
) -> float | None:
    """Return the idle share of the GPU while a text is decoded, after its first tokens: the share
    of time in which neither model replays a graph. None without graphs."""
    if target.device.type != "cuda":
        return None
    replay, spans = torch.cuda.CUDAGraph.replay, []

    def timed(graph: torch.cuda.CUDAGraph) -> None:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        replay(graph)
        last.record()
        spans.append((first, last))

    begun = decode(target, drafter, prompt, max_new=8)
    torch.cuda.synchronize(target.device)
    with patch.object(torch.cuda.CUDAGraph, "replay", timed):
        started = time.perf_counter()
        decode(target, drafter, begun.tokens, max_new=max_new)
        torch.cuda.synchronize(target.device)
        wall_ms = 1e3 * (time.perf_counter() - started)
    return 1 - sum(first.elapsed_time(last) for first, last in spans) / wall_ms if spans else None


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", nargs=2, required=True, help="of the target and the draft")
    parser.add_argument("--small", action="store_true", help="a rehearsal's sizes")
    args = parser.parse_args()
    pair = load_shapes(args.shapes, small=args.small)
    models = dict(zip(("target", "draft"), pair.models, strict=True))
    prompt = pair.target.tokenizer(PROMPT).input_ids
    drafters: dict[str, Drafter] = {"greedy": RootOnly(), "ouroboros": Ouroboros(models["draft"])}
    max_new = 16 if args.small else 256
    found = {
        "copy_gb_per_s": copy_bandwidth(pair.target.device) / 1e9,
        "idle_share": {
            name: idle_share(pair.target, drafter, prompt, max_new=max_new)
            for name, drafter in drafters.items()
        },
        "calls": {f"{role} {nodes}": kernel_table(models[role], nodes) for role, nodes in CALLS},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "kernel_times.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
