"""`ouroboros replay`: replay drafters against a recording, with no target, and predict their time.

The options are in conf/hydra/help/replay.yaml.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ouroboros.bench.metrics.sample import COST_RATIO
from ouroboros.bench.replay.recording import RecordedRuns, read_recording, runs_of
from ouroboros.bench.replay.replay import OffTextRates, replay, replay_table
from ouroboros.bench.replay.simulated_draft import DraftErrorModel, SimulatedDraft
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.folder import SAMPLES, ResultsFolder, load_costs
from ouroboros.bench.run.pair import PairSpec, load_tokenizer
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.configs import check_sizes, chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import known, print_document, print_table
from ouroboros.costs import UNTIMED, Costs
from ouroboros.decoders import check_decoders, decoder_factories, needs_draft
from ouroboros.tuning.advise import Evidence, batch_table


def replay_all(cfg: DictConfig, as_json: bool = False) -> int:
    """Replay each decoder, print the table and the document, write both; return 0."""
    config = chosen(plain(cfg))
    if not config["recording"]:
        raise ValueError("give recording=<results folder, or JSONL file>")
    for name in ("max_new", "limit", "threads"):
        check_whole(name, config[name], null=True)
    torch.set_num_threads(config["threads"] or torch.get_num_threads())
    check_decoders(config.get("decoder"))
    check_unused(config["results_dir"])
    path, task = Path(config["recording"]), config.get("task")
    tokenizer = load_tokenizer(PairSpec.from_mapping(config["model"]))
    folder = ResultsFolder(path) if path.is_dir() else None
    task = task and TaskSpec.from_mapping(task)
    recording = read_recording(path, tokenizer, task=task, limit=config["limit"])
    recorded = {name: runs_of(recording, name) for name in config["decoder"]}
    run = folder.load_run() if folder else {"model": {}}
    check_draft(config, run["model"].get("draft"), HydraConfig.get().overrides.task)
    costs, draft = load_costs(config["costs"]), draft_of(config, runs_of(recorded), tokenizer)
    decision_costs = costs or (folder and folder.load_costs()) or Costs.load(UNTIMED)
    makers = decoder_factories(config["decoder"], draft, decision_costs, tokenizer=tokenizer)
    rates, limit = OffTextRates.given(config["rates"]), config["max_new"]
    options: dict[str, Any] = {"max_new": limit, "rates": rates, "tokenizer": tokenizer}
    samples = {
        name: replay(recorded[name], make(), name=name, progress=True, **options)  # type: ignore[arg-type]
        for name, make in makers.items()
    }
    ratio = config["model"].get("draft_cost")
    if ratio is None and folder:
        ratio = run["model"].get("draft_cost")
        ratio = COST_RATIO if ratio is None else ratio
    table = replay_table(samples, recorded, costs=costs, draft_ratio=ratio, max_new=limit)
    simulated = [one for one in (draft, rates) if isinstance(one, SimulatedDraft | OffTextRates)]
    batches: dict[str, Any] = {}
    if config["batch_size"] is not None:
        if costs is None:
            raise ValueError("batch_size= needs costs of a machine, as costs=h200-34b-6b or epyc")
        sizes = check_sizes("batch_size", config["batch_size"])
        given: dict[str, Any] = {"draft": draft, "rates": {"": rates} if rates else None}
        evidence = {name: Evidence(own, costs, **given) for name, own in recorded.items()}
        for name, one in evidence.items():
            one.recorded = replace(one.recorded, max_new=limit or one.recorded.max_new)
            one.counted[one.key(name, config["decoder"][name], {})] = samples[name]
        batch, crossover = batch_table(evidence, config["decoder"], sizes)
        batches = {"batches": known(batch).to_dict("records"), "greedy_faster_from": crossover}
    title = ", ".join([f"replay of {path.name}", *(one.title for one in simulated)])
    document = {"title": title, "decoders": known(table).to_dict("index"), **batches}
    if config["results_dir"]:
        out = ResultsFolder(config["results_dir"])
        with out.locked():
            for sample in (one for own in samples.values() for one in own):
                out.append(SAMPLES, sample.to_dict())
        out.write_json("replay.json", document)
    print(title)
    print_table(table.reset_index(), digits=3)
    if batches and costs is not None:
        print(f"\npredicted by {costs.title}, for several sequences at once")
        print_table(batch.drop(columns="failed"))
        for name, size in crossover.items():
            if size is not None:
                print(f"{name}: greedy is faster from a batch of {size} on")
        print(*batch.failed.dropna().unique(), sep="\n")
    print_document({"recording": path.name, **document}, as_json)
    return 0


def check_draft(config: dict, recorded: str | None, overrides: Sequence[str]) -> None:
    """Raise `ValueError` where a decoder would draft with another model than the `recorded` one,
    unless the overrides name it."""
    name = config["model"]["draft"]
    drafts = any(map(needs_draft, config["decoder"].values())) and not config.get("draft")
    if not recorded or not drafts or Path(recorded).name == Path(name or recorded).name:
        return
    what = f"the recorded run drafted with {recorded}, this replay with {name}"
    if not any(override.startswith("model") for override in overrides):
        raise ValueError(f"{what}: give model.draft=<its folder or id>, or model.draft={name}")
    print(f"warning: {what}", file=sys.stderr)


def draft_of(config: dict, recorded: RecordedRuns, tokenizer) -> Any:
    """Return the draft that the decoders need, loaded or simulated; None where none is needed."""
    if not any(map(needs_draft, config["decoder"].values())):
        return None
    if not (options := config.get("draft")):
        return recorded.load_draft(PairSpec.from_mapping(config["model"]), tokenizer)
    errors = DraftErrorModel.load(Path(options["errors"])) if options["errors"] else None
    own = {**options, "errors": errors, "tokenizer": tokenizer}
    try:
        return SimulatedDraft(own.pop("agreement", None), recorded, **own)
    except TypeError as error:
        raise ValueError(f"draft: {error}") from error
