"""Run decoders over a task on one pair of models, and compare them: `ouroboros bench`.

What can be typed stands in conf/hydra/help/bench.yaml. In a sweep a job with failed samples does
not end the others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import corpus_scores
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.summary import Summary
from ouroboros.bench.report.write import make_report
from ouroboros.bench.run.config import check_options
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import RunIdentity
from ouroboros.bench.run.launch import check_timing
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.parallel import (
    alone,
    any_rank,
    check_parallel,
    exchanged,
    folder_of,
    joined,
    on_own_device,
)
from ouroboros.bench.run.run import Interruption, caveats, run_facts
from ouroboros.bench.tasks.task import Example, Task, conversations
from ouroboros.bench.verdict.run_audit import audit_run
from ouroboros.cli import place
from ouroboros.cli.build import build_bench, build_pair, build_task
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import SOME_FAILED
from ouroboros.cli.output import print_document
from ouroboros.cli.report import print_summary
from ouroboros.decoders import check_decoders
from ouroboros.engine.parallel.ranks import Alone, RankLost, Ranks, agreed
from ouroboros.reference_pair import FOLDER

NAMED = 6  # failed samples named before a retry
INTERRUPTED = "interrupted: finished samples are kept; the same results_dir goes on from here"
STOPPING = b"\nstopping after this sample; Ctrl-C again: at once\n"


def bench(cfg: DictConfig, as_json: bool = False) -> int:
    """Run, score, report; return the exit code (see above)."""
    config = settled(chosen(plain(cfg)))
    check_device(config)
    with joined(config) as ranks:
        task, examples = build_task(config["task"])
        if few := fewer(config["task"], len(conversations(examples))):
            _say(few)
        folder = ResultsFolder(results_path(config, task))
        return run_job(config, task, examples, folder, ranks=ranks)


def fewer(options: Mapping, found: int) -> str | None:
    """Return a line where a task has fewer prompts than were asked for, None where it has them."""
    limit, stride = options.get("limit"), options.get("stride", 1)
    if limit is None or found >= limit:
        return None
    every = f" at task.stride={stride}; task.stride=1 takes every one" if stride > 1 else ""
    return f"task.limit={limit}, but there are only {found}{every}"


def settled(config: dict) -> dict:
    """Return the config, its threads set, a matched temperature found. Raises `ValueError` for what
    no run can have."""
    if config["temperature"] == "matched":
        config = {**config, "temperature": matched(config["model"]["target"])}
    check_decoders(config.get("decoder"))
    check_options(config)
    check_parallel(config)
    load_costs(config.get("costs"))
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    return config


def matched(target: str) -> float:
    """Return the temperature at which a model's text repeats itself as a real model's greedy text
    does; it is known of the pair that ships with the package. Raises `ValueError` for others."""
    if target != "reference/target":
        raise ValueError(
            f"temperature=matched is known of reference/target, not of {target}: give a number"
        )
    return json.loads((FOLDER / "evaluation.json").read_text())["matched_temperature"]


def run_job(
    config: dict,
    task: Task,
    examples: list[Example],
    folder: ResultsFolder,
    *,
    pair_of: Callable[[dict], Pair] = build_pair,
    ranks: Ranks | None = None,
) -> int:
    """As `bench`, for a task that was built; `pair_of` gives the models of a config, and `ranks`
    are those of this process, alone by default. Of several, rank 0 alone scores and reports."""
    ranks = ranks or Alone()
    first, claim = ranks.rank == 0, RunIdentity.of(config, examples)
    agreed(ranks, lambda: folder.check_open(claim) if first else None)
    recorded = None if config["overwrite"] or not first else recorded_costs(folder)
    pair = agreed(ranks, lambda: pair_of(on_own_device(config, ranks)))
    parallel = ranks if config.get("parallel") else None
    job = build_bench(config, task, examples, pair, recorded=recorded, ranks=parallel)
    opened = partial(folder.open_run, run_facts(config, job), claim)
    run = agreed(ranks, lambda: opened() if first else {})
    if first and job.costs is not None and recorded is None:
        folder.save_costs(job.costs)
    for line in caveats(job, timing=config["timing"]):
        _say(line)
    _say(f"results: {place(folder.path)}")
    failed = [sample for sample in folder.load_samples() if sample.error]
    if config["retry_failed"] and failed:
        _say(retried(failed))
    try:
        with folder_of(folder, ranks) as own:
            finished = run_samples(job, own, retry_failed=config["retry_failed"], ranks=ranks)
    except RankLost:
        if first:
            folder.save_run(run, status="interrupted")
        raise
    if not first:
        return 0 if finished else 130
    run["parallel"] = exchanged(job.models)
    job = alone(job)
    return concluded(config, task, job, folder, run, finished=finished)


def concluded(
    config: dict, task: Task, job: Bench, folder: ResultsFolder, run: dict, *, finished: bool
) -> int:
    """Score, close and judge a run, and report it; return the exit code."""
    finished = finished and score_samples(job, folder)
    if finished and not config["save_pools"]:
        folder.drop_pools()
    run["corpus_scores"] = corpus_scores(task, job.examples, folder.load_samples())
    folder.save_run(run, status="finished" if finished else "interrupted")
    if finished and config["audit"] != "none":
        judge(job, folder, controls=config["audit"] == "all")
    return show(folder, interrupted=not finished)


def run_samples(
    job: Bench, folder: ResultsFolder, *, retry_failed: bool, ranks: Ranks | None = None
) -> bool:
    """Run with a progress bar; return False where Ctrl-C (or SIGTERM) ended it, on any rank.

    The first Ctrl-C lets the sample in progress end, a second one ends at once.
    """
    ranks = ranks or Alone()
    agree = partial(any_rank, ranks)
    with Interruption(partial(os.write, 2, b"" if ranks.rank else STOPPING)) as asked:
        try:
            with sample_bar(job.total, partial(asked.check, agree)) as on_sample:
                job.run(folder, on_sample, retry_failed=retry_failed)
        except KeyboardInterrupt:
            _say(INTERRUPTED)
            return False
        except RankLost:
            if not asked.asked:  # else it was interrupted as well, and was the first to end
                raise
            _say(INTERRUPTED)
            return False
    return True


def score_samples(job: Bench, folder: ResultsFolder) -> bool:
    """Score with a progress bar; return False where Ctrl-C (or SIGTERM) ended it."""
    try:
        with (
            Interruption(partial(os.write, 2, STOPPING)) as asked,
            tqdm(desc="scoring", unit="sample", leave=False, delay=2) as bar,
        ):

            def on_score() -> None:
                bar.update()
                asked.check()

            job.score(folder, on_score)
    except KeyboardInterrupt:
        _say(INTERRUPTED)
        return False
    return True


def judge(job: Bench, folder: ResultsFolder, *, controls: bool) -> None:
    """Hold every completion against plain decoding's, with a progress bar.

    The run is whole without: Ctrl-C, or memory that runs out, is one line.
    """
    total = len(job.examples) * job.repeats
    try:
        with tqdm(total=total, desc="audit", unit="prompt", leave=False, delay=2) as bar:
            audit_run(job, folder, controls=controls, on_row=bar.update)
    except (KeyboardInterrupt, Exception) as error:
        reason = str(error).strip() or type(error).__name__
        _say(f"no audit: {reason.splitlines()[0]}; ouroboros audit makes it again")


def show(folder: ResultsFolder, *, interrupted: bool) -> int:
    """Write the report, print its tables and, as the last line, one JSON document."""
    summary = make_report(folder)
    print_summary(summary)
    for line in summary.problems:
        _say(line)
    _say(f"summary: {place(folder.path / 'summary.json')}")
    document = {
        "results": place(folder.path),
        "title": summary.facts.title,
        "finished": not interrupted,
        "samples": summary.facts.samples,
        "decoders": summary.headline(),
    }
    print_document(document)
    return 130 if interrupted else ended(summary)


def ended(summary: Summary) -> int:
    """Return the exit code of a finished run; where samples failed, say so on stderr."""
    failed, samples = int(summary.frame["failed"].sum()), summary.facts.samples
    if not failed:
        return 0
    _say(f"{failed} of {samples} samples failed; retry_failed=true measures them again")
    return 1 if failed == samples else SOME_FAILED


def retried(failed: Sequence[Sample]) -> str:
    """Return one line: which failed samples are measured anew."""
    named = ", ".join(f"{sample.decoder} on {sample.example}" for sample in failed[:NAMED])
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    return f"measuring what failed anew: {named}{more}"


@contextmanager
def sample_bar(total: int, check: Callable[[], None]) -> Iterator:
    """A progress bar on stderr that names the decoder of the last sample and counts failures; after
    each one, `check` may raise."""
    failed = 0
    with tqdm(total=total, unit="sample", mininterval=0.5, dynamic_ncols=True) as bar:

        def on_sample(sample: Sample) -> None:
            nonlocal failed
            failed += sample.error is not None
            bar.set_postfix_str(sample.decoder + (f", {failed} failed" if failed else ""), False)
            bar.update()
            check()

        yield on_sample


def check_device(config: dict) -> None:
    """Refuse to time a job of a sweep that shares its device."""
    own = HydraConfig.get()
    if own.mode == RunMode.MULTIRUN:
        device = config["model"]["device"]
        check_timing(own.launcher, timing=config["timing"], device=device, job=own.job.num)


def results_path(config: dict, task: Task) -> Path:
    """Return the run's folder; each job of a sweep has its own."""
    own = HydraConfig.get()
    if own.mode == RunMode.MULTIRUN:
        return Path(config["results_dir"] or own.sweep.dir, f"{own.job.num:03d}")
    name = f"{task.name}-{config['model']['name']}-{datetime.now():%Y%m%d-%H%M%S}"
    return Path(config["results_dir"] or Path("results", "local", name))


def _say(text: str) -> None:
    print(text, file=sys.stderr)
