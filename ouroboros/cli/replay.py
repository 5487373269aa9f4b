"""Run drafters against a recording on any machine, with no target, and predict their time.

`ouroboros replay`; what can be typed stands in conf/hydra/help/replay.yaml.
"""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import DictConfig
from tabulate import tabulate
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import COST_RATIO
from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN, Sample, steps_of
from ouroboros.bench.replay.imitated_draft import ImitatedDraft
from ouroboros.bench.replay.imitation import Rates
from ouroboros.bench.replay.recorded_target import RecordedTarget, check_drafter, replay, sampled
from ouroboros.bench.replay.recording import RecordedRuns
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import SAMPLES, ResultsFolder
from ouroboros.bench.run.loop import text_of
from ouroboros.bench.run.pair import load_tokenizer
from ouroboros.cli.build import build_spec
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import print_document
from ouroboros.cli.tapes import given_rates, imitated_draft, load_tapes, loaded_draft
from ouroboros.costs import UNTIMED, CostModel, Costs
from ouroboros.decode import RootOnly
from ouroboros.decoders import check_decoders, decoder_factories, needs_draft
from ouroboros.engine.model import CachedModel


def replay_all(cfg: DictConfig, as_json: bool = False) -> int:
    """Replay each decoder, print the table and the document; return 0."""
    config = chosen(plain(cfg))
    if not config["recording"]:
        raise ValueError("give recording=<results folder, or JSONL file>")
    for name in ("max_new", "limit", "threads"):
        check_whole(name, config[name], null=True)
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    check_decoders(config.get("decoder"))
    tokenizer = load_tokenizer(build_spec(config["model"]))
    tapes = load_tapes(
        config["recording"],
        config["decoder"],
        tokenizer,
        of=config["recorded_decoder"],
        limit=config["limit"],
        task=config.get("task"),
    )
    costs = load_costs(config["costs"])
    tape = next(iter(tapes.values()))
    draft = draft_of(config, tape, tokenizer)
    target = RecordedTarget(tape, tokenizer=tokenizer)
    told = costs or told_costs(config["recording"])
    makers = decoder_factories(config["decoder"], draft, told, tokenizer=target.tokenizer)
    drafters = {name: make() for name, make in makers.items()}
    rates, limit = given_rates(config["rates"]), config["max_new"]
    for name, drafter in drafters.items():
        check_drafter(drafter, tapes[name], rates=rates)
    found = {
        name: replayed(name, drafter, tapes[name], tokenizer, max_new=limit, rates=rates)
        for name, drafter in drafters.items()
    }
    ratio = cost_ratio(config)
    rows = {name: row(found[name], tapes[name], costs, limit, ratio) for name in found}
    title = ", ".join([f"replay of {Path(config['recording']).name}", *imitated(draft, rates)])
    document = {"title": title, "decoders": rows}
    write(config["results_dir"], document, found)
    table = [{"decoder": name, **values} for name, values in rows.items()]
    print(title)
    print(tabulate(table, headers="keys", floatfmt=".3f", missingval="-"))
    print_document({"recording": Path(config["recording"]).name, **document}, as_json)
    return 0


def told_costs(recording: str) -> Costs:
    """Return the costs that the decoders of a recorded run went by, named ones where none did."""
    found = recorded_costs(ResultsFolder(recording)) if Path(recording).is_dir() else None
    return found or Costs.load(UNTIMED)


def imitated(draft: object, rates: Rates | None) -> list[str]:
    """Return what is not recorded but imitated, in words."""
    found = [draft.title] if isinstance(draft, ImitatedDraft) else []
    return found if rates is None else [*found, rates.title]


def draft_of(config: dict, tape: RecordedRuns, tokenizer) -> CachedModel | None:
    """Return the draft that the decoders need, loaded or imitated; None where none is needed."""
    if not any(map(needs_draft, config["decoder"].values())):
        return None
    if config.get("draft"):
        return imitated_draft(config["draft"], tape, tokenizer)
    return loaded_draft(config["model"], tape, tokenizer)


def cost_ratio(config: dict) -> float | None:
    """Return a draft call's cost in target calls: as configured, else as the recorded run's report
    has it; None where a recording is no run."""
    path, given = Path(config["recording"]), config["model"].get("draft_cost")
    if given is None and path.is_dir():
        cost = ResultsFolder(path).load_run()["model"].get("draft_cost")
        return COST_RATIO if cost is None else cost
    return given


def replayed(
    name: str,
    drafter,
    tape: RecordedRuns,
    tokenizer,
    *,
    max_new: int | None,
    rates: Rates | None = None,
) -> list[Sample]:
    """Return a sample, without times of its own, for each recorded run."""
    samples = []
    for recording in tqdm(tape.runs, desc=name, unit="run", leave=False):
        trace = replay(drafter, tape, recording, max_new=max_new, rates=rates)
        text = text_of(tokenizer, trace.new_tokens)
        samples.append(sampled(name, recording, trace, text=text))
    return samples


def row(
    samples: list[Sample],
    tape: RecordedRuns,
    costs: Costs | None,
    max_new: int | None,
    ratio: float | None,
) -> dict:
    """Return counts (calls per token where a draft call's `ratio` to a target call is known, or
    there is none), and with costs the predicted milliseconds per token and the speedup over a
    decoder that drafts nothing."""
    steps = steps_of(samples)
    tokens = sum(len(sample.new_tokens) for sample in samples)
    values = {
        "runs": len(samples),
        "new_tokens": tokens,
        "target_calls": len(steps),
        "tokens_per_target_call": METRICS["tokens_per_target_call"](samples),
        "acceptance_length": METRICS["acceptance_length"](samples),
        "draft_calls_per_token": METRICS["draft_calls_per_token"](samples),
    }
    if ratio is not None or not any(step.draft_calls for step in steps):
        found = METRICS["calls_per_token"](samples, ratio or 0.0)
        values["calls_per_token"] = found and found.value
    if costs is not None and tokens:
        plain = [
            Sample(
                *(r.example, PLAIN, r.repeat, 0, len(r.prompt)),
                steps=tuple(replay(RootOnly(), tape, r, max_new=max_new).steps),
            )
            for r in tape.runs
        ]
        ours_s, plain_s = (
            sum(CostModel(costs).predict(s).wall_s for s in own) for own in (samples, plain)
        )
        values["predicted_ms_per_token"] = 1e3 * ours_s / tokens
        values["predicted_speedup"] = plain_s / ours_s
    return values


def write(results_dir: str | None, document: dict, found: dict[str, list[Sample]]) -> None:
    """Write replay.json and samples.jsonl. Raises `ValueError` where there are such files."""
    if results_dir is None:
        return
    folder = ResultsFolder(results_dir)
    check_unused(results_dir)
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.appending(SAMPLES) as lines:
        for samples in found.values():
            for sample in samples:
                lines.append(sample.to_dict())
    folder.write_json("replay.json", document)
