"""`ouroboros tune`: tune every decoder on the same texts, or fit Ouroboros' estimators (`--fit`).

The options are in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report import style
from ouroboros.bench.report.plots import fitted_weights
from ouroboros.bench.run.config import RunConfig, Sampling, check_whole
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.identity import file_hashes, provenance
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.run import short_path
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli import CONF
from ouroboros.cli.configs import composed
from ouroboros.cli.output import print_document
from ouroboros.costs import Costs
from ouroboros.decoders import needs_draft
from ouroboros.drafters.calibration import calibrate
from ouroboros.tuning import tune as tuning
from ouroboros.tuning.search import SPACES

TITLE = """\
# Tuning on {texts} recorded development texts

Speed: tokens per target call of one node, by counts and costs; geometric mean over tasks and
temperatures. Each decoder: its configured settings, random ones up to {trials_each} in all, then
from the best of them a coordinate search. regret: what the configured settings lose against the
best found; best by ...: what settings lose that are the best by the other machine's costs."""


def tune(args: argparse.Namespace) -> int:
    """Search every decoder by every machine's costs and report, or fit; return 0."""
    if unknown := [name for name in args.decoders if name not in SPACES]:
        known = ", ".join(SPACES)
        raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
    for name in ("trials", "first", "limit", "max_new"):
        check_whole(f"--{name.replace('_', '-')}", getattr(args, name), null=name == "limit")
    names = ["ouroboros"] if args.fit else args.decoders
    exact = () if args.fit else ("model.standin=null", "model.dtype=float32")
    overrides = [f"decoder=[{','.join(names)}]", *exact, *args.overrides]
    config = RunConfig.from_mapping(composed(overrides))
    torch.set_num_threads(config.threads or torch.get_num_threads())
    shipped = "development.jsonl" if args.fit else "development*.jsonl"
    paths = args.prompts or sorted(map(str, Path(CONF, "task").glob(shipped)))
    tasks = {Path(path).stem: Prompts(path=path, stop=STOP) for path in paths}
    costs = {Path(name).stem: load_costs(name) or Costs.load(name) for name in args.costs}
    drafts = any(map(needs_draft, config.decoder.values()))
    pair = load_pair(config.model, with_draft=drafts)
    if args.fit:
        return fit(args, config, pair, tasks)
    on = [
        tuning.record(
            Bench(
                pair.target,
                pair.models,
                task,  # type: ignore[arg-type]
                task.load()[: args.limit],
                {},
                args.max_new,
                sampling=Sampling(seed=args.seed, temperature=temperature),
            ),
            next(iter(costs.values())),
        )
        for task in tasks.values()
        for temperature in args.temperatures
    ]
    machines = [
        tuning.Machine(name, own, configured(config.decoder, name)) for name, own in costs.items()
    ]
    options = {"trials": args.trials, "first": args.first, "seed": args.seed}
    about = file_hashes(config), args.overrides
    report, best = tuning.tune(machines, on, names, args.results, about=about, **options)
    runs = [run for one in on for run in one.recorded.runs]
    texts = [Sample("", "", 0, 0, 0, new_tokens=run.new_tokens) for run in runs]
    facts = {
        "texts": len(texts),
        "prompts": [Path(path).name for path in paths],
        "temperatures": args.temperatures,
        "max_new": args.max_new,
        "trials_each": args.trials,
        "repetition_rate": METRICS["repetition_rate"](texts),
        "costs": {machine.name: dict(machine.costs.about) for machine in machines},
        "provenance": provenance(),
        "report": [row.dropna().to_dict() for _, row in report.astype(object).iterrows()],
    }
    table = report.fillna("-").to_markdown(index=False)
    folder = ResultsFolder(args.results)
    folder.write_json("tuning.json", facts)
    folder.write_text("tuning.md", f"{TITLE.format(**facts)}\n\n{table}\n")
    print(f"results: {short_path(args.results)}", file=sys.stderr)
    print(table)
    print_document(best, args.json)
    return 0


def configured(decoders: Mapping[str, Mapping], costs: str) -> dict[str, Mapping]:
    """Return the decoders with the settings of conf/experiment/drafters_COSTS, which compares them
    by costs of that name, where there is such an experiment."""
    if not Path(CONF, "experiment", f"drafters_{costs}.yaml").exists():
        return dict(decoders)
    compared = composed([f"experiment=drafters_{costs}"])["decoder"]
    return {
        name: {**own, **{k: v for k, v in compared.get(name, {}).items() if k in SPACES[name]}}
        for name, own in decoders.items()
    }


def fit(args: argparse.Namespace, config: RunConfig, pair, tasks: Mapping[str, Prompts]) -> int:
    """Fit the estimators' weights, write them and a plot, print how well they predict; return 0."""
    target, draft = pair.models
    ids = {
        name: [target.tokenizer(one.prompt).input_ids for one in task.load()[: args.limit]]
        for name, task in tasks.items()
    }
    options = {"temperatures": args.temperatures, "max_new": args.max_new, "noise": args.noise}
    options |= {"eos": sorted(eos_ids(target))}
    options |= {"pair": f"{config.model.name}, {config.model.dtype}"}
    weights = calibrate(target, draft, ids, **options)
    args.fit.parent.mkdir(parents=True, exist_ok=True)
    weights.save(args.fit)
    style.save(fitted_weights(weights.about), args.fit.with_suffix(".png"))
    for view, what in (("index", "by phrases alone"), ("draft", "with the draft's view")):
        found: Any = weights.about[view]
        print(
            f"{what}: log loss {found['log_loss']:.3f} on {found['observations']} tokens held out"
            f" (always the mean: {found['log_loss_of_the_mean']:.3f})"
        )
    print(f"use it: ouroboros bench decoder.ouroboros.weights={args.fit}")
    return 0
