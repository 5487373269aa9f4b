"""Say where the time goes on this machine: what calls cost, and what steps consist of.

`ouroboros profile`; what can be typed stands in conf/hydra/help/profile.yaml. Both models are timed
on random trees by size and context, then the decoders run a few prompts. The folder is a results
folder with costs.json, profile.json, profile.md, verify_cost.png and step_time.png beside the
samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from omegaconf import DictConfig

from ouroboros.bench.metrics.operators import operators
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.plots.costs import step_time, verify_cost
from ouroboros.bench.report.plots.style import save_png
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.report.time_report import floor_frame, step_frame, time_facts, to_markdown
from ouroboros.bench.run.config import check_options, check_whole
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import RunIdentity
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import Pair
from ouroboros.bench.run.parallel import check_parallel
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.run.run import run_facts
from ouroboros.cli import place
from ouroboros.cli.bench import results_path, run_samples, score_samples
from ouroboros.cli.build import build_bench, build_pair, build_task
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.output import print_document
from ouroboros.cli.timing import about, measured_costs
from ouroboros.costs import Costs
from ouroboros.decode import Drafter
from ouroboros.decoders import DecoderFactory, check_decoders


def profile(cfg: DictConfig, as_json: bool = False) -> int:
    """Time calls, run the decoders, write the report; return the exit code, as ouroboros bench."""
    config = chosen(plain(cfg))
    options = config.pop("profile")
    check_decoders(config.get("decoder"))
    check_options(config)
    check_parallel(config)
    load_costs(config.get("costs"))
    check_profile(options, config)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    task, examples = build_task(config["task"])
    folder = ResultsFolder(results_path(config, task))
    claim = RunIdentity.of(config, examples)
    old = folder.check_open(claim)
    pair = build_pair(config)
    recorded = None if old is None else recorded_costs(folder)
    costs = recorded or measured_costs(pair, options)
    job = build_bench(config, task, examples, pair, recorded=costs)
    run = folder.open_run(run_facts(config, job), claim)
    print(f"results: {place(folder.path)}", file=sys.stderr)
    costs = replace(costs, about=about(run))
    folder.save_costs(costs)
    finished = run_samples(job, folder, retry_failed=config["retry_failed"])
    finished = finished and score_samples(job, folder)
    run = folder.save_run(run, status="finished" if finished else "interrupted")
    traced = traced_decoders(job, pair, options) if finished and options["trace"] else {}
    return show(folder, run, costs, traced)


def check_profile(options: Mapping, config: Mapping) -> None:
    """Raise `ValueError`, in one line, for what cannot be measured."""
    for name in ("visits", "calls", "trace_steps"):
        check_whole(f"profile.{name}", options[name])
    for name in ("nodes", "contexts"):
        values = options[name]
        if not isinstance(values, list) or not values:
            raise ValueError(f"profile.{name}={values}: give a list, as [1,8,64]")
        for value in values:
            check_whole(f"profile.{name}", value)
    for name in ("trace", "padded"):
        if not isinstance(options[name], bool):
            raise ValueError(f"profile.{name}={options[name]}: give true or false")
    if not config["timing"]:
        raise ValueError("timing=false: a profile is of times; leave it out")


def traced_decoders(job: Bench, pair: Pair, options: Mapping) -> dict:
    """Return what a few steps of each decoder of this engine consist of, on the first prompt."""
    prompt = prompt_ids(pair.target.tokenizer, job.examples[0])
    steps = options["trace_steps"]
    return {
        name: operators(pair.models, make, prompt, steps=steps)
        for name, make in job.decoders.items()
        if draws_trees(make)
    }


def draws_trees(make: DecoderFactory) -> TypeGuard[Callable[[], Drafter]]:
    """Return whether a maker's decoders are drafters of this engine."""
    return isinstance(make(), Drafter)


def show(folder: ResultsFolder, run: Mapping, costs: Costs, traced: Mapping) -> int:
    """Write the report, print its main tables and, as the last line, one JSON document."""
    samples = folder.load_samples()
    good = [sample for sample in samples if not sample.error]
    if any(step.scored for sample in good for step in sample.steps[1:]):
        seen = Costs.of_samples(good)
        costs = replace(costs, host_ms=seen.host_ms, prefill_ms=seen.prefill_ms)
    what = RunFacts.of(run, good)
    facts: dict[str, Any] = {"title": what.title, "footnote": what.footnote}
    facts |= time_facts(costs, samples) | {"operators": traced}
    folder.save_costs(costs)
    write_profile(folder, facts)
    frames = [as_text(frame, "simple") for frame in (floor_frame(facts), step_frame(facts))]
    print(facts["title"], facts["footnote"], *frames, sep="\n\n")
    for name, row in facts["steps"].items():
        for reason in row["errors"]:
            print(f"{name} failed: {reason}", file=sys.stderr)
    print_document(document(folder, run, facts))
    if run["status"] != "finished":
        return 130
    return 0 if good else 1


def write_profile(folder: ResultsFolder, facts: Mapping) -> None:
    """Write profile.json, profile.md and the plots."""
    folder.write_json("profile.json", dict(facts))
    folder.write_text("profile.md", to_markdown(facts))
    for figure, name in ((verify_cost(facts), "verify_cost"), (step_time(facts), "step_time")):
        if figure is not None:
            save_png(figure, folder.path / f"{name}.png")


def document(folder: ResultsFolder, run: Mapping, facts: Mapping) -> dict:
    """Return the few numbers that the last line of stdout carries."""
    keys = ("step_ms", "tokens_per_step", "share", "wait_share", "draft_calls_per_step")
    return {
        "results": place(folder.path),
        "title": facts["title"],
        "finished": run["status"] == "finished",
        "copy_gb_per_s": facts["copy_gb_per_s"],
        "floor_share": floor_shares(facts),
        "decoders": {name: {key: row[key] for key in keys} for name, row in facts["steps"].items()},
    }


def floor_shares(facts: Mapping) -> dict:
    """Return by model and context the share of its floor that the smallest call reaches."""
    return {
        role: {str(row["context"]): row["floor_share"] for row in calls["points"]}
        for role, calls in smallest(facts["calls"]).items()
    }


def smallest(calls: Mapping) -> dict:
    """Return each model's calls of the smallest tree alone."""
    return {
        role: {"points": [r for r in own["points"] if r["nodes"] == own["points"][0]["nodes"]]}
        for role, own in calls.items()
    }
