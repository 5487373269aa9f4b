"""What a few steps consist of: operators of the models, and Python functions outside of them.

Two passes over the same steps, since each profiler slows what the other measures: torch.profiler
for operators on device and CPU, cProfile for the host's own code. Invariant: in the second pass the
clock stands still inside `CachedModel.score`, so that the host's time is the host's alone.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from ouroboros.decode import Drafter, stream
from ouroboros.engine.model import CachedModel

ROOT = Path(__file__).parents[3]


def operators(
    models: Sequence[CachedModel],
    make: Callable[[], Drafter],
    prompt: Sequence[int],
    *,
    steps: int,
    top: int = 12,
) -> dict:
    """Return the `top` rows of {"device", "host", "python"} of `steps` steps after the first.

    `models[0]` is the target; all of them begin with empty caches. A row has name, ms (its own
    time), share of the whole pass and calls. "device" is empty where everything runs on the CPU.
    """
    run = _steps(models, make, prompt, steps)
    kinds = [ProfilerActivity.CPU]
    if any(model.device.type == "cuda" for model in models):
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as seen:
        count = sum(1 for _ in run)
    events = [
        (e.key, e.count, e.self_device_time_total / 1e3, e.self_cpu_time_total / 1e3)
        for e in seen.key_averages()
    ]
    return {
        "steps": count,
        "device": _top([(name, calls, device) for name, calls, device, _ in events], top),
        "host": _top([(name, calls, host) for name, calls, _, host in events], top),
        "python": _python(models, make, prompt, steps, top),
    }


def _python(models, make, prompt, steps: int, top: int) -> list[dict]:
    """Rows of functions of the host, without what is inside a model's call."""
    clock = HostClock()
    seen = cProfile.Profile(clock)
    run = _steps(models, make, prompt, steps)
    with clock.stopped_inside(models):
        seen.enable()
        for _ in run:
            pass
        seen.disable()
    found = pstats.Stats(seen).stats  # type: ignore[attr-defined]
    return _top([(_name(*key), row[1], 1e3 * row[2]) for key, row in found.items()], top)


def _steps(models, make, prompt, steps: int) -> Iterator:
    """Return the steps after the first, which has run already."""
    for model in models:
        model.empty()
    whole = stream(models[0], make(), prompt, max_new=1 << 30)
    next(whole)
    return (trace for _, trace in zip(range(steps), whole, strict=False))


class HostClock:
    """Seconds outside the models' calls: it stands still while one of them is under way."""

    def __init__(self) -> None:
        self._inside_s = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        now = time.perf_counter() if self._since is None else self._since
        return now - self._inside_s

    @contextmanager
    def stopped_inside(self, models: Sequence[CachedModel]) -> Iterator[None]:
        """Stop this clock inside every `score` of these models, as long as the context lasts."""
        for model in models:
            model.score = self._stopping(model.score)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for model in models:
                del model.score

    def _stopping(self, score: Callable) -> Callable:
        def stopped(*args, **options):
            self._since = time.perf_counter()
            try:
                return score(*args, **options)
            finally:
                self._inside_s += time.perf_counter() - self._since
                self._since = None

        return stopped


def _top(rows: Sequence[tuple[str, int, float]], top: int) -> list[dict]:
    """The rows (name, calls, ms) with most time, each with its share of all."""
    total = sum(ms for *_, ms in rows)
    largest = sorted(rows, key=lambda row: -row[2])[:top]
    return [
        {"name": name, "ms": ms, "share": ms / total, "calls": calls}
        for name, calls, ms in largest
        if ms > 0
    ]


def _name(file: str, line: int, function: str) -> str:
    """A function as a reader finds it: path in the project or file name, line, name."""
    if file == "~":
        return function
    path = Path(file)
    own = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
    return f"{own}:{line} {function}"
