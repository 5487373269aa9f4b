"""What a draft of each agreement would be worth on recorded greedy text, with no model at all.

`ouroboros agreement`; what can be typed stands in conf/hydra/help/agreement.yaml. Settings are
chosen for each decoder, agreement and cost on a held-out part of the prompts; figures are of the
rest. `measure` instead loads the pair and measures the ranks and confidences that an imitation is
made of.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from omegaconf import DictConfig
from tabulate import tabulate

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.replay import sentence_pieces
from ouroboros.bench.replay.imitation import Rates
from ouroboros.bench.replay.likeness import DraftErrorModel, measured
from ouroboros.bench.replay.recording import RecordedRuns, renumbered
from ouroboros.bench.report.plots import style
from ouroboros.bench.run.config import check_whole
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import provenance, without_paths
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.run.pair import load_pair, load_tokenizer
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.cli.agreeing.worths import Worths, by_group
from ouroboros.cli.build import build_spec, build_task
from ouroboros.cli.configs import chosen, plain
from ouroboros.cli.errors import check_unused
from ouroboros.cli.output import print_document
from ouroboros.cli.tapes import given_rates, load_tapes
from ouroboros.decoders import check_decoders
from ouroboros.tuning.agreement import Worth, pays_table, speedup_table, with_ratio
from ouroboros.tuning.plots import agreement_curves


def agreement(cfg: DictConfig, as_json: bool = False) -> int:
    """Print and write tables, plots and one JSON document; return 0."""
    config = chosen(plain(cfg))
    check(config)
    torch.set_num_threads(config["threads"] or torch.get_num_threads())
    if config["measure"]:
        return measure_likeness(config)
    tokenizer, tokens = tokenizer_of(config)
    tape = tape_of(config, tokenizer)
    machines = {
        (Path(name).stem, ratio): with_ratio(costs, ratio)
        for name in config["costs"]
        if (costs := load_costs(name)) is not None
        for ratio in config["ratios"]
    }
    rates = given_rates(config["rates"])
    told = Worths(config, tape, machines, tokenizer, rates)
    rows = list(told.rows())
    title = titled(config, told, tokens, rates)
    return finish(config, rows, title)


def check(config: dict) -> None:
    """Raise `ValueError`, in one line, for options that cannot be."""
    check_decoders(config["decoder"])
    for name in ("max_new", "threads", "per_group"):
        check_whole(name, config[name], null=True)
    check_whole("held_out", config["held_out"])
    if config["held_out"] < 2:
        raise ValueError("held_out=1 leaves no prompt to measure: give 2 or more (one in so many)")
    if not config["recording"] and not config["measure"]:
        raise ValueError("give recording=<results folder, or JSONL file>")
    if not config["agreement"] or not config["ratios"] or not config["costs"]:
        raise ValueError("agreement, ratios and costs need one value each at least")
    check_unused(config["results_dir"])


def measure_likeness(config: dict) -> int:
    """Measure how the pair's draft errs along the target's greedy texts, and write it."""
    spec = build_spec(config["model"])
    task, examples = build_task(config["task"])
    pair = load_pair(spec, with_draft=True)
    assert pair.draft is not None
    prompts = [prompt_ids(pair.target.tokenizer, example) for example in examples]
    dtype = str(pair.target.dtype).removeprefix("torch.")
    about = {"pair": f"the {spec.name} pair", "dtype": dtype, "task": config["task"].get("path")}
    found = measured(
        pair.target,
        pair.draft,
        prompts,
        max_new=config["max_new"] or task.max_new,
        eos=eos_ids(pair.target),
        about=about,
    )
    found.save(Path(config["measure"]))
    print_document({"shares": found.shares, "odds": found.odds, **found.about})
    return 0


def tokenizer_of(config: dict) -> tuple:
    """Return the tokenizer that texts are split by, and what it is called."""
    if config["tokenizer"] == "sentencepiece":
        found = sentence_pieces.sentence_pieces()
        if found is None:
            raise ValueError(
                "tokenizer=sentencepiece needs two packages that are not installed: pip install "
                "'ouroboros-decoding[recordings]', or give tokenizer=model"
            )
        return found, sentence_pieces.NAME
    spec = build_spec(config["model"])
    return load_tokenizer(spec), f"the {spec.name} pair's tokenizer"


def tape_of(config: dict, tokenizer) -> RecordedRuns:
    """Return the recorded runs, at most `per_group` prompts of each group, spread evenly."""
    own = config["recorded_decoder"]
    tape = load_tapes(config["recording"], [PLAIN], tokenizer, of=own)[PLAIN]
    named = {old: new for new, olds in (config["groups"] or {}).items() for old in olds}
    runs = [replace(run, group=named.get(run.group, run.group)) for run in tape.runs]
    chosen = set()
    for examples in by_group(runs).values():
        step = max(1.0, len(examples) / (config["per_group"] or len(examples)))
        chosen |= {examples[int(at * step)] for at in range(int(len(examples) / step))}
    limit = min(config["max_new"] or tape.max_new or 1 << 30, tape.max_new or 1 << 30)
    names = [*named.values(), *by_group(runs)]
    runs = [run for run in runs if run.example in chosen and run.new_tokens]
    runs.sort(key=lambda run: names.index(run.group))
    return renumbered(replace(tape, runs=runs, max_new=limit))


def titled(config: dict, told: Worths, tokens: str, rates: Rates | None) -> str:
    """Return what was done, in one line."""
    tried = ", ".join(f"{one:g}" for one in config["agreement"])
    given = config["draft"]["likeness"]
    source = (DraftErrorModel.load(Path(given)) if given else DraftErrorModel.load()).source
    off = "no predictions off the text" if rates is None else rates.title
    held, shown = told.parts()
    parts = [
        f"{Path(config['recording']).name}: {len(shown)} recorded greedy answers",
        f"draft imitated at agreement {tried} ({source})",
        off,
        f"settings chosen on {len(held)} other answers",
        tokens,
        "predicted from counted calls alone",
    ]
    return " · ".join(parts)


def finish(config: dict, rows: list[Worth], title: str) -> int:
    """Print tables and document; write them with the plots where there is a folder for them."""
    text = f"# {title}\n\nFrom which agreement on a draft pays beside what needs none\n\n"
    text += tabulate(pays_table(rows), headers="keys", tablefmt="github", missingval="-") + "\n"
    for costs, ratio in dict.fromkeys((row.costs, row.ratio) for row in rows):
        part = [row for row in rows if (row.costs, row.ratio) == (costs, ratio)]
        text += f"\nSpeedup over greedy, costs {costs}, a draft call {ratio:g} of a target call\n\n"
        text += tabulate(speedup_table(part), headers="keys", tablefmt="github") + "\n"
    document = {"title": title, "rows": [asdict(row) for row in rows]}
    if config["results_dir"]:
        folder = ResultsFolder(config["results_dir"])
        folder.path.mkdir(parents=True, exist_ok=True)
        about = without_paths({"config": config, "provenance": provenance()})
        folder.write_json("agreement.json", {**about, **document})
        (folder.path / "agreement.md").write_text(text, encoding="utf-8")
        for costs in dict.fromkeys(row.costs for row in rows):
            figure = agreement_curves([row for row in rows if row.costs == costs])
            style.with_title(figure, f"costs {costs} · {title}")
            stem = f"{folder.path}/agreement_{costs}"
            style.save(figure, Path(f"{stem}.png"), Path(f"{stem}.svg"))
    print(text)
    print_document(document)
    return 0
