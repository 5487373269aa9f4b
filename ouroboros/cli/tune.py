"""Tune every decoder on the same texts: `ouroboros tune`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.identity import provenance
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.options import TuneOptions
from ouroboros.conf import FOLDER
from ouroboros.core.instantiate import check_whole
from ouroboros.decoder_factory import check_decoders, needs_draft
from ouroboros.tuning import tune as tuning
from ouroboros.tuning.search import SPACES

TITLE = """\
# Tuning on {texts} recorded development texts

Speed: tokens per target call of one node, predicted from counts and costs; geometric mean over
tasks and temperatures. Search: {trials_each} settings of each decoder (the configured ones and
random ones), then a coordinate search from the best. regret: how much slower than the best settings
found the configured settings are; best by ...: the same for the settings that are best by these
other costs."""


def tune(options: TuneOptions) -> tuple[int, dict]:
    """Tune every decoder for each of the costs, write and print the report; return the best
    settings, {decoder: {name of costs: settings}}."""
    for name in ("trials", "first", "limit", "max_new"):
        check_whole(name, getattr(options, name), null=name == "limit")
    if unknown := [name for name in options.decoder if name not in SPACES]:
        known = ", ".join(SPACES)
        raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
    check_decoders(options.decoder)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    shipped = (FOLDER / "task").glob("development*.jsonl")
    paths = options.prompts or sorted(map(str, shipped))
    costs: Any = {made.about["name"]: made for made in map(load_costs, options.costs) if made}
    if len(costs) < len(options.costs):
        raise ValueError(f"two of costs={options.costs} have one name: rename a file or folder")
    results = Path(options.results_dir)
    pair = load_pair(options.model, with_draft=any(map(needs_draft, options.decoder.values())))
    on, limit = [], options.max_new
    for path in paths:
        spec = TaskSpec("prompts", {"path": path, "template": "auto"}, limit=options.limit)
        task, examples = spec.for_tokenizer(pair.target.tokenizer).load()
        for temperature in options.temperatures:
            sampling = Sampling(seed=options.seed, temperature=temperature)
            models = pair.target, pair.models
            bench = Bench(*models, task, examples, {}, limit, sampling=sampling)  # type: ignore[arg-type]
            on.append(tuning.record(bench))
    machines = [tuning.Machine(name, own, options.decoder) for name, own in costs.items()]
    report, best = tuning.tune(
        *(machines, on, list(options.decoder), results),
        trials=options.trials,
        first=options.first,
        seed=options.seed,
        about=asdict(options.model),
    )
    facts = {
        "texts": sum(len(one.recorded.runs) for one in on),
        "prompts": [Path(path).name for path in paths],
        "temperatures": options.temperatures,
        "max_new": options.max_new,
        "trials_each": options.trials,
        "costs": {machine.name: dict(machine.costs.about) for machine in machines},
        "provenance": provenance(),
        "report": [row.dropna().to_dict() for _, row in report.astype(object).iterrows()],
    }
    table, folder = report.fillna("-").to_markdown(index=False), ResultsFolder(results)
    folder.write_json("tuning.json", facts)
    folder.write_text("tuning.md", f"{TITLE.format(**facts)}\n\n{table}\n")
    print(f"results: {results}", file=sys.stderr)
    print(table)
    return 0, best
