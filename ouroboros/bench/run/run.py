"""A run from its config to its results folder, and what run.json records of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import FrameType

import torch

from ouroboros import vocab
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.config import carriers
from ouroboros.bench.run.identity import contents, machine, provenance, settings, without_paths
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.tasks.sandbox import kind
from ouroboros.bench.tasks.task import Task, fingerprint
from ouroboros.costs import Costs
from ouroboros.drafters.draft_tree.compiled import WHY_NOT
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import quantised_by
from ouroboros.engine.serving import serving

WITHOUT_PLAIN = (
    f"without {PLAIN} among decoder=[...] there is no speedup and no verdict on losslessness"
)
SLOW_ROWS = (
    "float32 on an AMD processor: calls of one to three nodes take longer than of four, so "
    "that ratios over greedy flatter; model.dtype=bfloat16 has no such step"
)


def caveats(job: Bench, *, timing: bool) -> Iterator[str]:
    """Yield the lines; `timing`: whether the run goes by the clock."""
    if PLAIN not in job.decoders:
        yield WITHOUT_PLAIN
    on_cpu = job.target.device.type == "cpu" and job.target.dtype == torch.float32
    if timing and on_cpu and "AMD" in str(machine()["cpu"]):
        yield SLOW_ROWS  # MKL takes each of so few rows by itself there


def run_facts(config: Mapping, job: Bench) -> dict:
    """Return what run.json records beside identity, environment and status.

    `part` is the share of the prompts that this run measures; parts have one identity, and a report
    joins them. `carried_pools` names the decoders whose phrase pool goes from prompt to prompt.
    `timing` false says that other jobs shared the device, so that seconds mean nothing.
    """
    model, target = config["model"], job.target
    return without_paths(
        {
            "task": {
                "name": job.task.name,
                "version": job.task.version,
                "licence": job.task.licence,
                "prompts": len(job.examples),
                "fingerprint": fingerprint(job.examples),
                "stop": list(job.task.stop),
            },
            "model": {
                **{key: model[key] for key in ("name", "target", "draft", "standin")},
                "commits": [_commit(model) for model in job.models],
                "dtype": str(target.dtype).removeprefix("torch."),
                "quantised": _quantised(job.models),
                "draft_cost": draft_cost(model.get("draft_cost"), job.models, job.costs),
                "engines": dict(zip(("target", "draft"), map(serving, job.models), strict=False)),
                "device": str(target.device),
                "max_len": target.max_len,
                "vocab_size": target.vocab_size,
                "tokenizer": vocab.fingerprint(target.tokenizer),
                "eos": sorted(eos_ids(target)),
            },
            "growth": WHY_NOT or "compiled",
            "sandbox": _sandbox(job.task),
            "decoders": list(job.decoders),
            "carried_pools": carriers(config["decoder"]),
            "sampling": asdict(job.sampling),
            "max_new": job.max_new,
            "repeats": job.repeats,
            "part": config.get("part"),
            "timing": config["timing"],
            "published": config.get("published"),
            "samples_wanted": job.total,
            "config": settings(config),
            "contents": contents(config),
            "provenance": provenance(),
        }
    )


def draft_cost(
    configured: float | None, models: Sequence[CachedModel], costs: Costs | None = None
) -> float | None:
    """Return a draft call's cost in target calls: as configured, else by the costs (calls of one
    node, at the least context known), else the bytes of the draft's weights over the target's,
    which a call reads; None without a draft."""
    if configured is not None or len(models) < 2:
        return configured
    if costs is not None and costs.draft is not None:
        return costs.draft_ratio()
    target, draft = (sum(w.nbytes for w in one.model.parameters()) for one in models[:2])
    return draft / target


def _commit(model: CachedModel) -> str | None:
    """Return the commit of the hub that a model was loaded from, None for one from a folder."""
    return getattr(getattr(model.model, "config", None), "_commit_hash", None)


def _sandbox(task: Task) -> str | None:
    """Return in what a task's completions are executed, None where they are not."""
    execution = getattr(task, "execution", None)
    return kind() if execution is not None and execution.allowed else None


def _quantised(models: Sequence[CachedModel]) -> dict[str, str] | None:
    """Return by what target and draft are quantised, by role; None where neither is."""
    found = {
        role: quantised_by(model.model)
        for role, model in zip(("target", "draft"), models, strict=False)
    }
    return {role: what for role, what in found.items() if what} or None


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Within it, the first signal is noted and `on_first` called; a second one raises
    `KeyboardInterrupt` where the program stands. Outside the main thread signals stay as they are.
    `on_first` runs inside a signal handler, perhaps in the middle of a print: it may not print.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self.asked = False
        self._on_first = on_first
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, agree: Callable[[bool], bool] = bool) -> None:
        """Raise `KeyboardInterrupt` if a signal came: called where ending costs nothing. `agree`
        says of whether one came here whether one came to any process."""
        if agree(self.asked):
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_first()
