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
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from ouroboros.bench.campaign.checks import Check
from ouroboros.bench.campaign.estimate import by_memory
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
from ouroboros.cli.bench import run_job, settled
from ouroboros.cli.build import any_drafts, build_pair, build_task
from ouroboros.cli.campaigning.fitted import TooLarge, fitted
from ouroboros.cli.campaigning.seconds import stage_seconds
from ouroboros.cli.configs import composed
from ouroboros.cli.timing import about, measured_costs
from ouroboros.costs.surface import Costs
from ouroboros.drafters.draft_tree.compiled import WHY_NOT
from ouroboros.engine.serving import serving
from ouroboros.tuning.memory import room

INTERRUPTED = 130
PARTLY = "costs.part.json"


@dataclass
class Pairs:
    """The pair of models loaded last, for as long as the next job wants the same."""

    key: str = ""
    pair: Pair | None = None

    def of(self, config: Mapping) -> Pair:
        """Return the config's pair."""
        key = json.dumps([config["model"], any_drafts(config["decoder"])], sort_keys=True)
        if key != self.key or self.pair is None:
            self.drop()
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
        except (TooLarge, ModuleNotFoundError) as error:
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
        code = run_job(config, task, examples, folder, pair_of=self.pair)
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
        folder.path.mkdir(parents=True, exist_ok=True)

        def keep(costs: Costs) -> None:
            folder.write_json(PARTLY, asdict(costs))

        found = measured_costs(self.pair(config), profile, keep)
        found = replace(found, about=about(run))
        folder.save_costs(found)
        (folder.path / PARTLY).unlink(missing_ok=True)
        return found

    def pair(self, config: dict) -> Pair:
        """Return a config's pair. Raises `ValueError` where a model is not served the fast way, or
        trees grow in plain Python, on a GPU that could, unless the stage may do with it."""
        pair = self.pairs.of(config)
        reasons = fallbacks(pair)
        if reasons and not self.options.get("fallbacks", True):
            raise ValueError(
                f"not as it should be measured: {'; '.join(reasons)}; fallbacks=true measures it "
                "all the same"
            )
        return pair

    def config(self, name: str) -> dict:
        """Return the settled config of one of the stage's experiments, for the memory here. Raises
        `TooLarge` where there is too little."""
        overrides = [*self.options["jobs"][name], *self.options["overrides"]]
        config = settled(composed(overrides))
        dtype = config["model"]["dtype"]
        return fitted(
            config,
            memory_bytes=room(self.device.type).total_bytes,
            dtype=fast_dtype(self.device.type) if dtype == "auto" else getattr(torch, dtype),
            profile=self.options.get("profile"),
            shares=self.options.get("layers", (1.0,)),
        )


def fallbacks(pair: Pair) -> list[str]:
    """Return why calls of a pair on a GPU, or trees, are not made the fast way, a line each."""
    found = zip(("target", "draft"), map(serving, pair.models), strict=False)
    reasons = [f"{role}: {own['fallback']}" for role, own in found if own["fallback"]]
    if pair.target.device.type == "cuda" and WHY_NOT:
        reasons.append(f"trees: {WHY_NOT}")
    return reasons


def run_stage(
    name: str, work: Callable[[Stage], None], options: Mapping, *, path: Path, facts: Mapping
) -> None:
    """Do a stage and write stage.json: `facts`, status, reason, seconds and figures."""
    folder = ResultsFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    started, status, reason = time.perf_counter(), "done", ""
    figures: Mapping = {}
    expected = None
    with Interruption(lambda: None) as asked, open(path / "stage.log", "a") as log:
        stage = Stage(name, options, facts["rehearsal"], folder, asked)
        try:
            if not facts["rehearsal"]:
                expected = round(stage_seconds(options, by_memory(room().total_bytes)))
                print(f"{name}: {expected} s at most, by estimate", file=sys.stderr, flush=True)
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
        reason = reason or left_out(figures)
    own = {"status": status, "reason": reason, "seconds": time.perf_counter() - started}
    own["estimated_s"] = expected
    folder.write_json("stage.json", {**facts, **own, "figures": figures})


def left_out(figures: Mapping) -> str:
    """Return which parts of a stage were left out and why; "" where none was."""
    parts = {
        n: p["left_out"] for n, p in figures.items() if isinstance(p, dict) and "left_out" in p
    }
    return "left out: " + "; ".join(f"{n}, {why}" for n, why in parts.items()) if parts else ""


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
