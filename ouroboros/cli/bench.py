"""Run decoders over a task on one pair of models, and compare them: `ouroboros bench`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from ouroboros.bench.report.report import make_report
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.identity import identity
from ouroboros.bench.run.pair import Pair, PairSpec, load_pair
from ouroboros.bench.run.run import run
from ouroboros.cli.common import SOME_FAILED
from ouroboros.cli.report import print_summary
from ouroboros.costs import Costs


def bench(options: RunConfig) -> tuple[int, dict | None]:
    """Run the benchmark, write the report, print the tables; return the exit code and the JSON
    document (None on other ranks than 0, and if no sample was finished)."""
    config, probe = run_config(options)

    def say(line: str) -> None:  # stderr is replaced in other ranks than 0
        print(line, file=sys.stderr)

    def measured(pair: Pair) -> Costs | None:
        return Costs.load(probe) if probe and probe.exists() else None

    load = kept_pair if HydraConfig.get().mode == RunMode.MULTIRUN else load_pair
    result = run(config, say=say, progress=True, measure_costs=measured, load=load)
    costs = result.bench.costs
    if probe and result.first and costs and "spread" in costs.about:
        costs.save(probe)
    interrupted = 0 if result.finished else 130
    folder = result.folder
    if not result.first or (interrupted and not folder.load_samples()):
        return interrupted, None
    summary = make_report(folder)
    print_summary(summary)
    if busy := summary.facts.busy:
        say(f"the {busy}: times and their order may change; repeat the run when it is idle")
    for line in (*summary.problems, f"summary: {folder.path / 'summary.json'}"):
        say(line)
    failed, samples = int(summary.frame["failed"].sum()), summary.facts.samples
    if failed and not interrupted:
        say(f"{failed} of {samples} samples failed; rerun the command to measure them again")
    document = {
        "results": str(folder.path),
        "title": summary.facts.title,
        "finished": result.finished,
        "samples": samples,
        "decoders": summary.headline(),
    }
    code = 0 if not failed else 1 if failed == samples else SOME_FAILED
    return interrupted or code, document


_kept: dict[str, Pair] = {}


def kept_pair(spec: PairSpec, **how) -> Pair:
    """Like `load_pair`; in a sweep, keep a pair that the next job needs too."""
    key = identity(asdict(spec), how, torch.get_num_threads())
    if key not in _kept:
        _kept.clear()  # two pairs may not fit in memory
        _kept[key] = load_pair(spec, **how)
    return _kept[key]


def run_config(options: RunConfig) -> tuple[RunConfig, Path | None]:
    """Return this job's config and, in a timed sweep without `costs`, the file of call costs
    that all jobs on the same models share, so that jobs differ in settings, not in measured
    costs. Each job has a separate results folder. Raises `ValueError` if a job is timed while
    others may share its device."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return options, None
    sweep, device = Path(options.results_dir or hydra.sweep.dir), options.model.device
    name, number = hydra.launcher["_target_"].rpartition(".")[2], hydra.job.num
    if options.timing and name != "BasicLauncher" and device != f"cuda:{number}":
        raise ValueError(
            f"hydra's {name} runs jobs side by side on one device, so their times mean nothing: "
            "give timing=false (counts only), a device for each job, or no parallel launcher"
        )
    folder = sweep / f"{number:03d}"
    config = replace(options, results_dir=str(folder))
    if config.costs or not config.timing:
        return config, None
    calls = config.threads, config.task.to_mapping(), config.max_new
    digest = identity(asdict(config.model), config.needs_draft, *calls)
    for old in sweep.glob("costs-*.json") if config.overwrite and number == 0 else ():
        old.unlink()
    return config, sweep / f"costs-{digest}.json"
