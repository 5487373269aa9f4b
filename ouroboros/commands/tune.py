"""Tune every decoder on the same recorded texts, each with the same effort: `ouroboros tune`.

What can be typed, and how it is done, stands in `ouroboros.commands.arguments`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from omegaconf import OmegaConf
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.measure.intervals import pooled
from ouroboros.bench.measure.metrics import calls_part, mean_repetition_rate
from ouroboros.bench.measure.predicted import cost_part
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.replay.same_text import Text, texts
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.jsonl import JsonLines, locked, read_lines
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.provenance import code_hash, identity, provenance
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.bench.tasks.humaneval import STOP
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.commands import CONF, place
from ouroboros.commands.build import build_pair, check_decoders, make_decoder, wants_costs
from ouroboros.commands.configs import SPACES, composed, replaced
from ouroboros.commands.fitting import fit
from ouroboros.costs.surface import Costs
from ouroboros.engine.model import CachedModel

FINALISTS = 3
SEARCHES = "searches.jsonl"  # of the results folder: every search that was ended
Settings = Mapping[str, object]


@dataclass(frozen=True)
class Trial:
    """One setting of one decoder; no settings are the configured ones."""

    decoder: str
    settings: dict

    @property
    def name(self) -> str:
        return f"{self.decoder} {json.dumps(self.settings, sort_keys=True)}"


def draw(decoder: str, count: int, seed: int) -> list[Trial]:
    """Return the configured settings ({}) and `count - 1` different random ones, or as many as
    there are."""
    rng, space = random.Random(f"{seed}-{decoder}"), SPACES[decoder]
    count = min(count, 1 + math.prod(map(len, space.values())))
    trials = [Trial(decoder, {})]
    seen = {trials[0].name}
    while len(trials) < count:
        trial = Trial(decoder, {key: rng.choice(values) for key, values in space.items()})
        if trial.name not in seen:
            seen.add(trial.name)
            trials.append(trial)
    return trials


def speed(samples: Sequence[Sample], costs: Costs) -> float:
    """Return tokens per cost of the samples, 0 where one failed or there are none: a call of the
    target on one node costs 1. Of an engine that does not say what its calls score, each call
    costs as one of one node, which is in its favour."""
    if not samples or any(sample.error for sample in samples):
        return 0.0
    try:
        spent = pooled(samples, part=cost_part(costs))
    except ValueError:
        spent = pooled(samples, part=partial(calls_part, cost_ratio=ratio(costs)))
    return 1 / spent.value if spent and spent.value else 0.0


def ratio(costs: Costs) -> float:
    """Return what a draft call costs in target calls, both of one node."""
    least = min(costs.target.ms)
    return costs.draft.call_ms(1, least) / costs.target.call_ms(1, least) if costs.draft else 0.0


@dataclass
class Search:
    """One machine's search: a decoder's counts at settings, on texts that all of them share.

    `configs` are the decoders as configured for these costs; `seen` keeps every sample, by all
    that it depends on, and `tried` how many settings of each decoder were looked at.
    """

    name: str
    costs: Costs
    configs: Mapping[str, dict]
    draft: CachedModel | None
    seen: dict[tuple, Sample] = field(default_factory=dict)
    tried: dict[str, set[str]] = field(default_factory=dict)

    def full(self, decoder: str, settings: Settings) -> dict:
        """Return the value of each option that is tuned, where the settings leave it as configured
        too; an option of which neither says anything is left out."""
        own = OmegaConf.create(replaced(self.configs[decoder], settings))
        found = {key: OmegaConf.select(own, key) for key in SPACES[decoder]}
        return {key: value for key, value in found.items() if value is not None}

    def samples(self, decoder: str, settings: Settings, among: Sequence[Text]) -> list[Sample]:
        """Return the decoder's sample on each text, from before where it was there. Raises
        `ValueError` for settings that it does not take."""
        config = replaced(self.configs[decoder], settings)
        asks = self.name if wants_costs(config) else ""
        key = json.dumps(self.full(decoder, settings), sort_keys=True)
        self.tried.setdefault(decoder, set()).add(key)
        new = [text for text in among if (decoder, asks, key, id(text)) not in self.seen]
        if new:
            made = make_decoder(config, self.draft, self.costs, what=f"decoder.{decoder}")
        for text in new:
            self.seen[decoder, asks, key, id(text)] = text.counts(made, decoder)
        return [self.seen[decoder, asks, key, id(text)] for text in among]

    def rate(self, decoder: str, settings: Settings, among: Sequence[Text]) -> float:
        """Return the geometric mean of the speed over tasks and temperatures: each counts alike,
        however slow its text is."""
        cells: dict[tuple, list[Sample]] = {}
        for text, one in zip(among, self.samples(decoder, settings, among), strict=True):
            cells.setdefault(text.cell, []).append(one)
        found = [speed(own, self.costs) for own in cells.values()]
        return float(gmean(found)) if min(found) > 0 else 0.0

    def climb(self, decoder: str, start: Settings, among: Sequence[Text]) -> dict:
        """Return the best of a search from `start`, one setting after the other over its whole
        range, until none gains."""
        best, last = dict(start), None
        while best != last:
            last = best
            for key, values in SPACES[decoder].items():
                near = [best, *({**best, key: value} for value in values)]
                best = max(near, key=lambda one: self.rate(decoder, one, among))
        return best

    def best(
        self, decoder: str, trials: Sequence[Trial], few: Sequence[Text], all_: Sequence[Text]
    ):
        """Return the best settings on all texts: of the configured, and of the best that the
        trials and a climb from the best of them gave on a few."""
        rates = {trial.name: self.rate(decoder, trial.settings, few) for trial in trials}
        ranked = sorted(trials, key=lambda trial: -rates[trial.name])
        top = self.climb(decoder, self.full(decoder, ranked[0].settings), few)
        last = [{}, top, *(trial.settings for trial in ranked[: FINALISTS - 1])]
        return max(last, key=lambda one: self.rate(decoder, one, all_))


def tune(args: argparse.Namespace) -> int:
    """Load, search every decoder by every machine's costs, report, or fit; return 0."""
    if args.fit:
        return fit(args)
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
    report(args, searches, found, searched(args, searches, found))
    return 0


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
    args: argparse.Namespace, searches: Sequence[Search], found: Sequence[Text]
) -> dict[tuple[str, str], dict]:
    """Return the best settings of each decoder by each machine's costs, of all that any search
    ended at. A search that was ended before, on the same, is not made again."""
    few, best = found[: args.first * len(args.temperatures) * len(args.prompts)], {}
    jobs = [(name, search) for name in args.decoders for search in searches]
    on = [(*text.cell, text.tape.runs[0].prompt, text.tape.runs[0].new_tokens) for text in found]
    effort = (args.trials, args.first, args.seed, args.overrides, SPACES)
    args.results.mkdir(parents=True, exist_ok=True)
    with locked(args.results / SEARCHES) as file:
        ended, kept = JsonLines(file, args.results / SEARCHES), {}
        for _, row in read_lines(args.results / SEARCHES):
            kept[row["key"]] = row
        for name, search in tqdm(jobs, desc="searches", unit="search"):
            key = identity(
                code_hash(), on, effort, name, asdict(search.costs), search.configs[name]
            )
            if key not in kept:
                trials = draw(name, args.trials, args.seed)
                own = search.full(name, search.best(name, trials, few, found))
                kept[key] = {"key": key, "settings": own, "tried": sorted(search.tried[name])}
                ended.append(kept[key])
            best[name, search.name] = kept[key]["settings"]
            search.tried.setdefault(name, set()).update(kept[key]["tried"])

    def rate(search: Search, name: str, own: Settings) -> float:
        return search.rate(name, own, found)

    return {
        (name, s.name): max((best[name, o.name] for o in searches), key=partial(rate, s, name))
        for name, s in jobs
    }


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
        "repetition_rate": mean_repetition_rate(texts_as_samples(plain)),
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
    print(json.dumps(chosen))


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
