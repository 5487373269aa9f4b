"""Tune every decoder on the same recorded texts, each with the same effort: `ouroboros tune`.

What can be typed, and how it is done, stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.replay.same_text import Text, texts
from ouroboros.bench.run.config import RunConfig, Sampling
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.identity import code_hash, file_hashes, identity, provenance
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli import CONF, place
from ouroboros.cli.build import build_pair
from ouroboros.cli.configs import SPACES, composed
from ouroboros.cli.fitting import fit
from ouroboros.cli.output import print_document
from ouroboros.cli.tuning.ended import ended_searches
from ouroboros.cli.tuning.search import Search, draw
from ouroboros.decoders import check_decoders

SEARCHES = "searches.jsonl"  # of the results folder: every search that was ended


def tune(args: argparse.Namespace) -> int:
    """Load, search every decoder by every machine's costs, report, or fit; return 0."""
    if args.fit:
        return fit(args)
    own = sorted(Path(CONF, "task").glob("development*.jsonl"))
    args.prompts = args.prompts or [str(path) for path in own]
    unknown = [name for name in args.decoders if name not in SPACES]
    if unknown:
        known = ", ".join(SPACES)
        raise ValueError(f"nothing to tune of {', '.join(unknown)}: conf/tune has {known}")
    exact = ("model.standin=null", "model.dtype=float32")
    config = composed([f"decoder=[{','.join(args.decoders)}]", *exact, *args.overrides])
    check_decoders(config["decoder"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    costs = {Path(name).stem: load_costs(name) for name in args.costs}
    loaded = {Path(path).stem: Prompts(path=path, stop=STOP) for path in args.prompts}
    tasks = {name: task.load() for name, task in loaded.items()}
    pair = build_pair(config)
    job = Bench(pair.target, pair.models, next(iter(loaded.values())), [], {}, args.max_new)
    samplings = [Sampling(seed=args.seed, temperature=heat) for heat in args.temperatures]
    found = texts(tasks, [replace(job, sampling=own) for own in samplings], args.limit)
    seen: dict[tuple, Sample] = {}
    searches = [
        Search(name, own, configured(config["decoder"], name), pair.draft, seen)
        for name, own in costs.items()
        if own is not None
    ]
    report(args, searches, found, searched(args, shared(args, config, found), searches, found))
    return 0


def shared(args: argparse.Namespace, config: Mapping, found: Sequence[Text]) -> str:
    """Return the identity of what all searches share: code, models, texts and effort."""
    on = [(*text.cell, text.tape.runs[0].prompt, text.tape.runs[0].new_tokens) for text in found]
    effort = (args.trials, args.first, args.seed, args.overrides, SPACES)
    return identity(code_hash(), file_hashes(RunConfig.from_mapping(config)), on, effort)


def configured(decoders: Mapping[str, dict], costs: str) -> dict[str, dict]:
    """Return the decoders as they are configured for costs of a name: by the experiment that
    compares them there, where there is one."""
    if not Path(CONF, "experiment", f"drafters_{costs}.yaml").exists():
        return dict(decoders)
    own = composed([f"experiment=drafters_{costs}"])["decoder"]
    return {name: {**options, **tuned_of(own, name)} for name, options in decoders.items()}


def tuned_of(decoders: Mapping[str, dict], name: str) -> dict:
    """Return a decoder's tuned options among `decoders`; {} where it is not there."""
    return {key: value for key, value in decoders.get(name, {}).items() if key in SPACES[name]}


def searched(
    args: argparse.Namespace, of: str, searches: Sequence[Search], found: Sequence[Text]
) -> dict[tuple[str, str], dict]:
    """Return the best settings of each decoder by each machine's costs, of all that any search
    ended at. `of` is the identity of all that the searches share."""
    few = found[: args.first * len(args.temperatures) * len(args.prompts)]
    jobs = [(name, search) for name in args.decoders for search in searches]

    def made(name: str, search: Search) -> dict:
        best = search.best(name, draw(name, args.trials, args.seed), few, found)
        return {"settings": best, "tried": sorted(search.tried[name])}

    best: dict[tuple[str, str], dict] = {}
    with ended_searches(args.results / SEARCHES) as ended:
        for name, search in tqdm(jobs, desc="searches", unit="search"):
            key = identity(of, name, asdict(search.costs), search.configs[name])
            row = ended.of(key, partial(made, name, search))
            best[name, search.name] = row["settings"]
            search.tried.setdefault(name, set()).update(row["tried"])

    def top(name: str, search: Search) -> dict:
        candidates = (best[name, other.name] for other in searches)
        return max(candidates, key=lambda own: search.rate(name, own, found))

    return {(name, search.name): top(name, search) for name, search in jobs}


def report(
    args: argparse.Namespace,
    searches: Sequence[Search],
    found: Sequence[Text],
    best: Mapping[tuple[str, str], dict],
) -> None:
    """Write and print, decoder by decoder and machine by machine, what the configured settings
    lose against the best found, and what settings lose that are the best elsewhere."""
    rows = []
    for name in args.decoders:
        for search in searches:
            own = best[name, search.name]
            top = search.rate(name, own, found)
            lost = {
                f"best by {other.name}": loss(search.rate(name, best[name, other.name], found), top)
                for other in searches
                if other is not search
            }
            rows.append(
                {
                    "decoder": name,
                    "costs": search.name,
                    "configured": round(search.rate(name, {}, found), 3),
                    "best found": round(top, 3),
                    "regret": loss(search.rate(name, {}, found), top),
                    **lost,
                    "settings tried": len(search.tried[name]),
                    "settings": search.full(name, own),
                }
            )
    plain = [text.tape.runs[0].new_tokens for text in found]
    facts = {
        "texts": len(found),
        "prompts": [Path(path).name for path in args.prompts],
        "temperatures": args.temperatures,
        "max_new": args.max_new,
        "trials_each": args.trials,
        "repetition_rate": METRICS["repetition_rate"](texts_as_samples(plain)),
        "costs": {search.name: dict(search.costs.about) for search in searches},
        "provenance": provenance(),
        "report": rows,
    }
    table = pd.DataFrame(rows).fillna("-").to_markdown(index=False)
    folder = ResultsFolder(args.results)
    folder.write_json("tuning.json", facts)
    folder.write_text("tuning.md", f"{TITLE.format(**facts)}\n\n{table}\n")
    print(f"results: {place(args.results)}", file=sys.stderr)
    print(table)
    chosen = {name: {s.name: best[name, s.name] for s in searches} for name in args.decoders}
    print_document(chosen, args.json)


TITLE = """\
# Tuning on {texts} recorded development texts

Speed: tokens per target call of one node, by counts and costs; geometric mean over tasks and
temperatures. Each decoder: its configured settings, random ones up to {trials_each} in all, then
from the best of them a search to its end. regret: what the configured settings lose against the
best found; best by ...: what settings lose that are the best by the other machine's costs."""


def loss(rate: float, best: float) -> str:
    """Return how much slower a rate is than the best, as a percentage."""
    return f"{100 * (1 - rate / best):.1f} %" if best else "-"


def texts_as_samples(plain: Sequence[Sequence[int]]) -> list[Sample]:
    """Return texts as samples, for figures of text alone."""
    return [Sample("", "", 0, 0, 0, new_tokens=tuple(tokens)) for tokens in plain]
