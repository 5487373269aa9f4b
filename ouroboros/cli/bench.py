"""Run decoders over a task on one pair of models, and compare them: `ouroboros bench`.

conf/hydra/help/bench.yaml lists the options. In a sweep a job with failed samples does not stop
the others. Jobs that a launcher runs side by side on one device slow each other down by an unknown
amount, so they must count calls and tokens only (`timing=false`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from ouroboros.bench.report.report import make_report
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import machine, sources_hash
from ouroboros.bench.run.run import run, short_path
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import SOME_FAILED
from ouroboros.cli.output import print_document
from ouroboros.cli.report import print_summary


def bench(cfg: DictConfig, as_json: bool = False) -> int:
    """Run and report; return the exit code."""
    config = run_config(chosen(plain(cfg)))
    result = run(config, say=_say, progress=True, probe=shared_probe(config))
    if not result.first:
        return 0 if result.finished else 130
    return show(result.folder, interrupted=not result.finished, as_json=as_json)


def run_config(options: dict) -> RunConfig:
    """Return the config of this job; each job of a sweep has a results folder and may be timed only
    where no other job shares its device."""
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        folder = Path(options["results_dir"] or hydra.sweep.dir, f"{hydra.job.num:03d}")
        options = {**options, "results_dir": str(folder)}
        device = options["model"]["device"]
        check_timing(hydra.launcher, timing=options["timing"], device=device, job=hydra.job.num)
    return RunConfig.from_mapping(options)


def shared_probe(config: RunConfig) -> Path | None:
    """Return the file with the costs that jobs of a sweep on the same models go by, so that its
    settings are compared, not its probes; None outside of a sweep."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return None
    sweep, here = Path(str(config.results_dir)).parent, machine()
    calls = (asdict(config.model), config.threads, config.task.name, config.max_new)
    made_by = (config.context_tokens, here["cpu"], here["gpus"], sources_hash())
    digest = hashlib.sha256(repr((*calls, *made_by)).encode()).hexdigest()[:8]
    for old in sweep.glob("costs-*.json") if config.overwrite and hydra.job.num == 0 else ():
        old.unlink()
    return sweep / f"costs-{digest}.json"


def show(folder: ResultsFolder, *, interrupted: bool, as_json: bool) -> int:
    """Write the report, print its tables and, as the last line, one JSON document."""
    summary = make_report(folder)
    print_summary(summary)
    for line in summary.problems:
        _say(line)
    _say(f"summary: {short_path(folder.path / 'summary.json')}")
    document = {
        "results": short_path(folder.path),
        "title": summary.facts.title,
        "finished": not interrupted,
        "samples": summary.facts.samples,
        "decoders": summary.headline(),
    }
    print_document(document, as_json)
    failed, samples = int(summary.frame["failed"].sum()), summary.facts.samples
    if interrupted or not failed:
        return 130 if interrupted else 0
    _say(f"{failed} of {samples} samples failed; retry_failed=true measures them again")
    return 1 if failed == samples else SOME_FAILED


def check_timing(launcher: Mapping, *, timing: bool, device: str | None, job: int) -> None:
    """Raise `ValueError` for a timing run under a launcher whose jobs share a device.

    `launcher` is Hydra's `hydra.launcher`, `device` the config's model.device (None: chosen by the
    run), `job` the job's number in its sweep.
    """
    if timing and not alone(launcher, device=device, job=job):
        name = launcher["_target_"].rpartition(".")[2]
        raise ValueError(
            f"hydra's {name} runs jobs side by side on one device, so their times mean nothing: "
            "give timing=false (counts only), a device for each job, or no parallel launcher"
        )


def alone(launcher: Mapping, *, device: str | None = None, job: int = 0) -> bool:
    """Return whether a job has its device to itself. Jobs of unknown launchers are taken to share.

    Slurm and Ray give a requested GPU to one job at a time. Slurm does the same with a node that is
    requested as exclusive. If the device is `cuda:N`, where N is the job's number, no other job
    uses it.
    """
    extra, ray = launcher.get("additional_parameters") or {}, launcher.get("ray") or {}
    gpus = (ray.get("remote") or {}).get("num_gpus") or 0
    exclusive = {
        "BasicLauncher": True,
        "JoblibLauncher": launcher.get("n_jobs") == 1,
        "SlurmLauncher": launcher.get("gpus_per_node")
        or launcher.get("gres")
        or extra.get("exclusive"),
        "RayLauncher": gpus >= 1 or (ray.get("init") or {}).get("num_cpus") == 1,
    }
    name = str(launcher.get("_target_", "")).rpartition(".")[2]
    return device == f"cuda:{job}" or bool(exclusive.get(name))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
