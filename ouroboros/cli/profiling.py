"""Say where the time goes on this machine: what calls cost, and what steps consist of.

`ouroboros profile`; what can be typed stands in conf/hydra/help/profile.yaml. Both models are timed
on random trees by size and context, then the decoders run a few prompts. The folder is a results
folder with costs.json, profile.json, profile.md, verify_cost.png and step_time.png beside the
samples.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import torch
from omegaconf import DictConfig

from ouroboros.bench.metrics.operators import operators
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.profile import Profile, call_frame, step_frame
from ouroboros.bench.report.tables import as_text
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
from ouroboros.decoders import check_decoders


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
    traced = pd.DataFrame()
    if finished and options["trace"]:
        traced = traced_decoders(job, pair, options["trace_steps"])
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
        raise ValueError("timing=false: a profile measures times; leave it out")


def traced_decoders(job: Bench, pair: Pair, steps: int) -> pd.DataFrame:
    """Return what so many steps of each decoder of this engine consist of, on the first prompt."""
    prompt = prompt_ids(pair.target.tokenizer, job.examples[0])
    found = [
        operators(pair.models, make, prompt, steps=steps).assign(decoder=name)
        for name, make in job.decoders.items()
        if isinstance(make(), Drafter)
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def show(folder: ResultsFolder, run: Mapping, costs: Costs, traced: pd.DataFrame) -> int:
    """Write the report, print its main tables and, as the last line, one JSON document."""
    samples = folder.load_samples()
    good = [sample for sample in samples if not sample.error]
    if any(step.scored for sample in good for step in sample.steps[1:]):
        seen = Costs.of_samples(good)
        costs = replace(costs, host_ms=seen.host_ms, prefill_ms=seen.prefill_ms)
    folder.save_costs(costs)
    facts = RunFacts.of(run, samples)
    copy_gb_per_s = costs.copy_bytes_per_s and costs.copy_bytes_per_s / 1e9
    found = Profile(facts, copy_gb_per_s, call_frame(costs), step_frame(samples), traced)
    found.save(folder)
    frames = [as_text(frame, "simple") for frame in (found.floor_table(), found.step_table())]
    print(facts.title, facts.footnote, *frames, sep="\n\n")
    for error in sorted({f"{one.decoder} failed: {one.error}" for one in samples if one.error}):
        print(error, file=sys.stderr)
    document = {"results": place(folder.path), "finished": run["status"] == "finished"}
    print_document(document | found.to_dict(brief=True))
    if run["status"] != "finished":
        return 130
    return 0 if good else 1
