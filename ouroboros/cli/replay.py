"""Replay drafters on a recording without the target, and predict times: `ouroboros replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.replay import replay as replaying
from ouroboros.bench.replay.recording import read_recording, runs_of
from ouroboros.bench.report.tables import cell, terminal_table
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.pair import load_model, load_tokenizer
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.common import terminal
from ouroboros.cli.options import ReplayOptions
from ouroboros.core.instantiate import check_whole
from ouroboros.costs import UNTIMED, Costs
from ouroboros.decoder_factory import check_decoders, needs_draft, with_pools
from ouroboros.models import vocab


def replay(options: ReplayOptions) -> tuple[int, dict]:
    """Replay each decoder and print the table; return the exit code (2 if a decoder could not be
    replayed) and the JSON document."""
    for name in ("max_new", "limit", "threads"):
        check_whole(name, getattr(options, name), null=True)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    check_decoders(options.decoder)
    costs = load_costs(options.costs)
    path, spec = Path(str(options.recording)), options.model
    folder, tokenizer = ResultsFolder(path) if path.is_dir() else None, load_tokenizer(spec)
    task = TaskSpec.from_mapping(options.task) if options.task else None
    recording = read_recording(path, tokenizer, task=task, limit=options.limit)
    run = folder.load_run() if folder else {"model": {}}

    draft: Any = None
    if any(map(needs_draft, options.decoder.values())):
        draft = load_model(spec, "draft")
        target: Any = runs_of(recording).target(tokenizer)
        vocab.check_pair(target, draft)
    same = draft is None or Path(str(spec.draft)).name == Path(str(run["model"].get("draft"))).name
    ratio = run["model"].get("draft_cost") if same else None  # another draft's cost is unknown
    plan_costs = costs or (folder and folder.load_costs()) or Costs.load(UNTIMED)
    drafters, samples, failures = {}, {}, list[ValueError]()
    for name, config in with_pools(options.decoder, draft, tokenizer).items():
        drafters[name] = replaying.replay_decoder(config, draft, plan_costs)
        replaying.check_drafter(drafters[name], runs_of(recording, name))
    for name, drafter in drafters.items():
        recorded, max_new = runs_of(recording, name), options.max_new
        try:
            samples[name] = replaying.replay(
                recorded, drafter, name=name, max_new=max_new, progress=True
            )
        except ValueError as error:  # a prediction is missing; the other decoders are shown
            failures.append(error)
    if not samples:
        raise failures[0]

    texts = {name: runs_of(recording, name) for name in samples}
    table = replaying.replay_table(
        samples, texts, costs=costs, draft_ratio=ratio, max_new=options.max_new
    )
    if "failed" in table:
        reasons = table["failed"].dropna().items()
        failures += [ValueError(f"{name} is not predicted: {reason}") for name, reason in reasons]
    counts = table.astype(object).where(table.notna(), None).to_dict("index")  # None for JSON
    document: dict = {"title": f"replay of {path.name}", "decoders": counts}
    if costs is not None:
        document["costs"] = costs.about.get("name", "the given costs")
        bare = "" if costs.prefill_ms else ", without prefill"
        document["title"] += f", predicted with {document['costs']}{bare}"
    print(document["title"], end="\n\n")
    terminal().print(terminal_table(terminal_columns(table)))
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 2 if failures else 0, {"recording": path.name, **document}


def terminal_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Return the main columns of a `replay_table`, as text with the headings of reports."""
    shown = pd.DataFrame({"decoder": table.index})
    for name in ("tokens_per_target_call", "draft_calls_per_token", "calls_per_token"):
        shown[METRICS[name].heading] = [cell(METRICS[name], row) for _, row in table.iterrows()]
    if "predicted_speedup" in table:
        speedup = METRICS["predicted_speedup"]
        ms = table["predicted_ms_per_token"].map("{:.2f}".format, na_action="ignore")
        shown["ms/token"] = ms.fillna("-").to_numpy()
        shown[speedup.heading] = [cell(speedup, row) for _, row in table.iterrows()]
    return shown
