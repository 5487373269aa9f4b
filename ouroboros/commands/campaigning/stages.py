"""What each stage of ouroboros campaign does, in a process of its own.

A stage is checks, runs (an experiment each, by the run loop of ouroboros bench) and timings. Every
part writes its results before the next begins; a run that lies finished in the stage's folder is
not done again, and one that was stopped goes on. Invariant: stage.json says "running" until the
stage has ended, and then how it did.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from ouroboros import standin
from ouroboros.bench.advice.memory import footprint_of, longest_context, room
from ouroboros.bench.campaign.checks import Check
from ouroboros.bench.run.costs import recorded_costs
from ouroboros.bench.run.interrupt import Interruption
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.provenance import (
    environment,
    fast_dtype,
    machine,
    versions,
    without_paths,
)
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.commands.bench import run_job, settled
from ouroboros.commands.build import any_drafts, build_pair, build_task
from ouroboros.commands.configs import composed
from ouroboros.commands.timing import about, measured_costs
from ouroboros.costs.surface import Costs

INTERRUPTED = 130
LEAST_CONTEXT = 2048  # tokens that both models' caches must have room for beside the weights


class TooLarge(ValueError):
    """Models that do not fit in the memory: no failure, but nothing to be measured here."""


@dataclass
class Pairs:
    """The pair of models loaded last, for as long as the next job wants the same."""

    key: str = ""
    pair: Pair | None = None

    def of(self, config: Mapping) -> Pair:
        """Return the config's pair. Raises `TooLarge` where it does not fit in the memory."""
        key = json.dumps([config["model"], any_drafts(config["decoder"])], sort_keys=True)
        if key != self.key or self.pair is None:
            self.drop()
            check_room(config)
            self.pair, self.key = build_pair(dict(config)), key
        return self.pair

    def drop(self) -> None:
        """Free the models, and the graphs that were made of them."""
        self.pair, self.key = None, ""
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass
class Stage:
    """A stage at work: its options, its folder, what it found so far and a line for each part that
    failed."""

    name: str
    options: Mapping
    rehearsal: bool
    folder: ResultsFolder
    asked: Interruption
    figures: dict = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    pairs: Pairs = field(default_factory=Pairs)

    @property
    def device(self) -> torch.device:
        """What the stage measures."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def attempt(self, name: str, part: Callable[[], object]) -> None:
        """Do a part and write the figures; one that fails is a line, and the others go on.

        A check that passed before, by the same code here, is not made again. Raises
        `KeyboardInterrupt` where the stage was asked to end.
        """
        self.asked.check()
        if name in self.figures:
            return
        try:
            self.figures[name] = part()
        except TooLarge as error:
            self.figures[name] = {"left_out": str(error)}
        except Exception as error:
            self.failures[name] = brief(error)
        self.save()

    def check(self, name: str, part: Callable[[], Check]) -> None:
        """Do a check; one that fails to run has not passed."""
        self.attempt(name, lambda: asdict(part()))
        if name in self.failures:
            reason = self.failures.pop(name)
            self.figures[name] = asdict(Check(name, False, note=reason))
            self.save()

    def save(self) -> None:
        """Write figures.json."""
        self.folder.write_json("figures.json", {"made_by": environment(), "parts": self.figures})

    def take_up(self) -> None:
        """Take up the checks that passed, if they were made by the same code on this machine."""
        path = self.folder.path / "figures.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if old.get("made_by") == environment():
            parts = old["parts"].items()
            self.figures = {n: p for n, p in parts if isinstance(p, dict) and p.get("passed")}

    def job(self, name: str, *, profile: Mapping | None = None) -> ResultsFolder:
        """Run one of the stage's experiments, or take it up; return its folder.

        With `profile` the pair's calls are timed before. Raises `KeyboardInterrupt` where it was
        ended, and `ValueError` where every sample failed.
        """
        config = self.config(name)
        folder = ResultsFolder(self.folder.path / name)
        if finished(folder):
            return folder
        task, examples = build_task(config["task"])
        if profile is not None and recorded_costs(folder) is None:
            self.costs(config, folder, profile)
        code = run_job(config, task, examples, folder, pair_of=self.pairs.of)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        samples = folder.load_samples()
        if all(sample.error for sample in samples):
            raise ValueError(f"every sample failed, the first: {samples[0].error}")
        return folder

    def costs(self, config: dict, folder: ResultsFolder, profile: Mapping) -> Costs:
        """Time the calls of a config's pair; write and return them."""
        run = {
            "model": {key: config["model"][key] for key in ("name", "standin", "dtype")},
            "provenance": {"machine": machine(), "versions": versions()},
        }
        found = replace(measured_costs(self.pairs.of(config), profile), about=about(run))
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.save_costs(found)
        return found

    def config(self, name: str) -> dict:
        """Return the settled config of one of the stage's experiments."""
        overrides = [*self.options["jobs"][name], *self.options["overrides"]]
        return settled(composed(overrides))


def run_stage(
    name: str, work: Callable[[Stage], None], options: Mapping, *, path: Path, facts: Mapping
) -> None:
    """Do a stage and write stage.json: `facts`, status, reason, seconds and figures."""
    folder = ResultsFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    started, status, reason = time.perf_counter(), "done", ""
    figures: Mapping = {}
    with Interruption(lambda: None) as asked, open(path / "stage.log", "a") as log:
        stage = Stage(name, options, facts["rehearsal"], folder, asked)
        try:
            with contextlib.redirect_stdout(log):
                stage.take_up()
                work(stage)
        except KeyboardInterrupt:
            status, reason = "stopped", "out of time: what is finished is kept, run it again"
        except Exception as error:
            status, reason = "failed", brief(error)
        if status == "done" and stage.failures:
            status = "failed"
            reason = "; ".join(f"{part}: {line}" for part, line in stage.failures.items())
        figures = stage.figures
    own = {"status": status, "reason": reason, "seconds": time.perf_counter() - started}
    folder.write_json("stage.json", {**facts, **own, "figures": figures})


def check_room(config: Mapping) -> None:
    """Raise `TooLarge` where a stand-in's weights do not fit in the free memory."""
    shapes = config["model"]["standin"]
    if not shapes:
        return
    roles = ("target", "draft") if any_drafts(config["decoder"]) else ("target",)
    name = config["model"]["dtype"]
    dtype = fast_dtype(_device_name()) if name == "auto" else getattr(torch, name)
    needs = {role: footprint_of(standin.shape(shapes[role]), dtype) for role in roles}
    free = room(_device_name()).free_bytes
    if longest_context(needs, free) < LEAST_CONTEXT:
        wanted = sum(own.weight_bytes for own in needs.values()) / 2**30
        raise TooLarge(
            f"{wanted:.0f} GiB of weights ({' and '.join(shapes[role] for role in roles)}), and "
            f"{free / 2**30:.0f} GiB are free"
        )


def finished(folder: ResultsFolder) -> bool:
    """Say whether a run lies finished in a folder."""
    with contextlib.suppress(ValueError):
        return folder.load_run()["status"] == "finished"
    return False


def brief(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says, without absolute paths."""
    text = (str(error).strip() or "no message").splitlines()[0]
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return without_paths(kind + text)


def _device_name() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
