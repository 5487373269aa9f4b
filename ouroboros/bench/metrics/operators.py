"""What a few steps consist of: operators of the models, and Python functions outside of them.

Two passes over the same steps, since each profiler slows what the other measures: torch.profiler
for operators on device and CPU, cProfile for the host's code. In the second pass the clock stops
inside `CachedModel.score`, so the time of Python functions excludes model calls.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from torch.profiler import ProfilerActivity, profile

from ouroboros.decode import Drafter, stream
from ouroboros.engine.model import CachedModel

ROOT = Path(__file__).parents[3]
TOP = 12  # rows per pass


def operators(
    models: Sequence[CachedModel], make: Callable[[], Drafter], prompt: Sequence[int], *, steps: int
) -> pd.DataFrame:
    """Return the operators and functions with most time in `steps` steps after the first.

    `models[0]` is the target; all caches are emptied first. Columns: kind ("device", "host" or
    "python"), name, ms (its own time), share of the whole pass, calls, steps. There are no "device"
    rows if everything runs on the CPU.
    """

    def later_steps() -> Iterator:
        for model in models:
            model.empty()
        whole = stream(models[0], make(), prompt, max_new=1 << 30)
        next(whole)
        return (trace for _, trace in zip(range(steps), whole, strict=False))

    kinds = [ProfilerActivity.CPU]
    if any(model.device.type == "cuda" for model in models):
        kinds.append(ProfilerActivity.CUDA)
    run = later_steps()
    with profile(activities=kinds) as seen:
        count = sum(1 for _ in run)
    events = seen.key_averages()
    rows = [("device", e.key, e.self_device_time_total / 1e3, e.count) for e in events]
    rows += [("host", e.key, e.self_cpu_time_total / 1e3, e.count) for e in events]
    run = later_steps()
    for (file, line, function), row in _functions(models, run).items():
        path = Path(file)
        path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
        name = function if file == "~" else f"{path}:{line} {function}"
        rows.append(("python", name, 1e3 * row[2], row[1]))
    frame = pd.DataFrame(rows, columns=["kind", "name", "ms", "calls"])
    frame["share"] = frame["ms"] / frame.groupby("kind")["ms"].transform("sum")
    frame = frame[frame["ms"] > 0].sort_values("ms", ascending=False, kind="stable")
    frame = frame.groupby("kind", sort=False).head(TOP).sort_values("kind", kind="stable")
    return frame.assign(steps=count).reset_index(drop=True)


def _functions(models: Sequence[CachedModel], run: Iterator) -> dict:
    """cProfile's statistics of a run, by (file, line, function), with a clock that stops inside
    every `score` of these models."""
    inside_s, since = 0.0, None

    def clock() -> float:
        return (time.perf_counter() if since is None else since) - inside_s

    def stopping(score: Callable) -> Callable:
        def stopped(*args, **options):
            nonlocal inside_s, since
            since = time.perf_counter()
            try:
                return score(*args, **options)
            finally:
                inside_s += time.perf_counter() - since
                since = None

        return stopped

    seen = cProfile.Profile(clock)
    for model in models:
        model.score = stopping(model.score)  # type: ignore[method-assign]
    try:
        seen.enable()
        for _ in run:
            pass
        seen.disable()
    finally:
        for model in models:
            del model.score
    return pstats.Stats(seen).stats  # type: ignore[attr-defined]
