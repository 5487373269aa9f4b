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
from omegaconf import DictConfig

from ouroboros.bench.metrics.operators import operators
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.profile import Profile, call_frame, step_frame
from ouroboros.bench.report.tables import as_text
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.run.run import run, short_path
from ouroboros.cli.bench import run_config
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.output import print_document
from ouroboros.cli.timing import about, measured_costs
from ouroboros.costs import Costs
from ouroboros.decode import Drafter


def profile(cfg: DictConfig, as_json: bool = False) -> int:
    """Time calls, run the decoders, write the report; return the exit code, as ouroboros bench."""
    composed = chosen(plain(cfg))
    options = composed.pop("profile")
    config = run_config(composed)
    check_profile(options, timing=config.timing)
    result = run(
        config,
        say=lambda line: print(line, file=sys.stderr),
        progress=True,
        measure_costs=lambda pair: measured_costs(pair, options),
    )
    folder, bench = result.folder, result.bench
    record = folder.load_run()
    assert bench.costs is not None
    costs = replace(bench.costs, about=about(record))
    folder.save_costs(costs)
    traced = pd.DataFrame()
    if result.finished and options["trace"]:
        traced = traced_decoders(bench, options["trace_steps"])
    return show(folder, record, costs, traced, as_json)


def check_profile(options: Mapping, *, timing: bool) -> None:
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
    if not timing:
        raise ValueError("timing=false: a profile measures times; leave it out")


def traced_decoders(job: Bench, steps: int) -> pd.DataFrame:
    """Return what so many steps of each decoder of this engine consist of, on the first prompt."""
    prompt = prompt_ids(job.target.tokenizer, job.examples[0])
    found = [
        operators(job.models, make, prompt, steps=steps).assign(decoder=name)
        for name, make in job.decoders.items()
        if isinstance(make(), Drafter)
    ]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def show(
    folder: ResultsFolder, run: Mapping, costs: Costs, traced: pd.DataFrame, as_json: bool
) -> int:
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
    document = {"results": short_path(folder.path), "finished": run["status"] == "finished"}
    print_document(document | found.to_dict(brief=True), as_json)
    if run["status"] != "finished":
        return 130
    return 0 if good else 1
