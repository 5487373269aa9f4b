"""Tune every decoder on the same recorded texts, with the same number of trials for each.

Greedy's text of each prompt is recorded in float32. Decoders are replayed on these texts; those
that cannot be replayed run live and must return the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.metrics.sample import Sample, sample_frame
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.replay import replay, replay_decoder
from ouroboros.bench.run.folder import ResultsFolder, read_lines
from ouroboros.bench.run.identity import git_state, identity
from ouroboros.bench.run.loop import Bench
from ouroboros.costs import CostModel, Costs
from ouroboros.decode import RootOnly
from ouroboros.decoder_factory import wants_costs
from ouroboros.models.vocab import eos_ids
from ouroboros.tuning.search import SPACES, random_settings, search

FINALISTS = 3
SEARCHES = "searches.jsonl"
Settings = Mapping[str, object]


@dataclass
class Evidence:
    """Greedy's texts of the prompts of `bench`. `counted` caches samples by decoder, settings
    and the costs that the decoder plans with."""

    recorded: RecordedRuns
    bench: Bench
    counted: dict[str, list[Sample]] = field(default_factory=dict, repr=False)

    def counts(self, name: str, config: Mapping, settings: Settings, costs: Costs) -> list[Sample]:
        """Replay or run a decoder with `config`, overridden by `settings`. Return one sample per
        text; its `error` is set if the tokens differ from the recorded ones."""
        key = f"{name} {sorted(settings.items())} {costs if wants_costs(config) else ''}"
        if key in self.counted:
            return self.counted[key]
        draft = self.bench.models[1] if len(self.bench.models) > 1 else None
        drafter = replay_decoder(config, draft, costs, **settings)
        try:
            found = replay(self.recorded, drafter, name=name)
        except ValueError:
            found = []
            for run, example in zip(self.recorded.runs, self.bench.examples, strict=False):
                (row,) = self.bench.measured([drafter], [(example, 0)])
                sample = replace(row.sample, decoder=name)
                if not sample.error and tuple(sample.new_tokens) != run.new_tokens:
                    sample = replace(sample, error="the text is not greedy's: is this float32?")
                found.append(sample)
        self.counted[key] = found
        return found


def record(bench: Bench) -> Evidence:
    """Record greedy's texts of the bench's prompts. Raises `ValueError` if a prompt fails."""
    target, runs = bench.target, []
    for example in tqdm(bench.examples, desc="texts", leave=False):
        (row,) = bench.measured([RootOnly()], [(example, 0)])
        if row.sample.error:
            raise ValueError(f"greedy failed on {example.id}: {row.sample.error}")
        text = tuple(row.prompt), row.sample.new_tokens, row.sample.finish
        runs.append(RecordedRun(example.id, *text))
    limits = bench.sampling, bench.max_new, target.max_len, target.vocab_size, eos_ids(target)
    made = str(target.dtype).removeprefix("torch."), str(target.describe_engine()["engine"])
    return Evidence(RecordedRuns(runs, *limits, *made), bench)


@dataclass
class Machine:
    """A machine's call costs; `decoders` is {name: config for this machine}."""

    name: str
    costs: Costs
    decoders: Mapping[str, Mapping]

    def full(self, decoder: str, settings: Settings) -> dict:
        """Return a value for each option that conf/tune lists for the decoder: from `settings`,
        or else from the decoder's config. Leave out options that are null or set in neither."""
        own = {**self.decoders[decoder], **settings}
        return {key: own[key] for key in SPACES[decoder] if own.get(key) is not None}

    def rate(self, decoder: str, settings: Settings, on: Sequence[Evidence]) -> float:
        """Return the geometric mean of a decoder's `speed` over the items of `on`."""
        full = self.full(decoder, settings)
        found = []
        for evidence in on:
            samples = evidence.counts(decoder, self.decoders[decoder], full, self.costs)
            found.append(speed(samples, self.costs))
        return float(gmean(found)) if min(found) > 0 else 0.0

    def best(
        self, decoder: str, trials: Sequence[Settings], few: Sequence[Evidence], on: Sequence
    ) -> dict:
        """Return the finalist that is best on all texts, `on`: of the configured settings, the
        best of `trials` on fewer texts, `few`, and the result of a coordinate search from there."""
        ranked = sorted(trials, key=lambda own: -self.rate(decoder, own, few))
        start = self.full(decoder, ranked[0])
        top = search(lambda own: self.rate(decoder, own, few), SPACES[decoder], start=start)
        last = [{}, top, *ranked[: FINALISTS - 1]]
        return self.full(decoder, max(last, key=lambda own: self.rate(decoder, own, on)))


def speed(samples: Sequence[Sample], costs: Costs) -> float:
    """Return new tokens / cost, pooled over samples; 0 if a sample failed. The cost of the calls
    is predicted by `costs`, in target calls of one node; greedy's speed is 1. If an engine does
    not report scored nodes, each of its calls counts as a call of one node. Raises `ValueError`
    for costs without a draft that it calls."""
    if not samples or any(sample.error for sample in samples):
        return 0.0
    model = CostModel(costs)
    if reason := model.why_not(samples):
        raise ValueError(f"{samples[0].decoder} cannot be tuned for these costs: {reason}")
    frame = sample_frame(samples, model, costs.draft_ratio() or 0.0)
    spent = frame["cost"].fillna(frame["calls"]).sum() / max(1, frame["tokens"].sum())
    return 1 / spent if spent else 0.0


def tune(
    machines: Sequence[Machine],
    on: Sequence[Evidence],
    names: Sequence[str],
    results: Path,
    *,
    trials: int = 24,
    first: int | None = None,
    seed: int = 0,
    about: object = None,
) -> tuple[pd.DataFrame, dict[str, dict[str, dict]]]:
    """Tune every decoder with each machine's costs on texts from `record`; return (report,
    {decoder: {machine: best settings}}).

    On the `first` texts (None: all) of each item of `on`, each decoder tries its configured
    settings and random ones, `trials` in all, and then a coordinate search from the best; the
    finalists are compared on all texts. For each machine, the report shows how much slower other
    settings are than the best: the configured ones ("regret"), and those that are the best for each
    other machine ("best by <name>"). Finished searches are saved in the folder `results` and
    skipped on a rerun with the same inputs; `about` (JSON values) identifies other inputs.
    """
    cut = [replace(one.recorded, runs=one.recorded.runs[:first]) for one in on]
    few = [replace(one, recorded=own, counted={}) for one, own in zip(on, cut, strict=True)]
    texts = [(asdict(one.recorded.sampling), [r.tokens for r in one.recorded.runs]) for one in on]
    given = identity(git_state(Path(__file__).parent), texts, about, SPACES)
    folder = ResultsFolder(results)
    found: dict[str, list[dict]] = {name: [] for name in names}  # one per machine
    with folder.locked(SEARCHES), tqdm(total=len(names) * len(machines), desc="searches") as bar:
        done = {row["key"]: row for row in read_lines(results / SEARCHES)}
        for name in names:
            drawn = random_settings(SPACES[name], trials, f"{seed}-{name}")
            for machine in machines:
                own = asdict(machine.costs), dict(machine.decoders[name])
                key = identity(given, trials, first, seed, name, *own)
                if key not in done:
                    top = machine.best(name, drawn, few, on)
                    done[key] = {"key": key, "settings": top}
                    folder.append(SEARCHES, done[key])
                found[name].append(done[key]["settings"])
                bar.update()
    rows, tops = [], {}
    for name in names:
        rates = [partial(machine.rate, name, on=on) for machine in machines]
        best = [max(found[name], key=rate) for rate in rates]
        tops[name] = {machine.name: own for machine, own in zip(machines, best, strict=True)}
        for machine, rate, settings in zip(machines, rates, best, strict=True):
            highest, configured = rate(settings), rate({})
            row: dict = {"decoder": name, "costs": machine.name}
            row |= {"configured": round(configured, 3), "best found": round(highest, 3)}
            others = {f"best by {m}": rate(s) for m, s in tops[name].items() if m != machine.name}
            for column, value in {"regret": configured, **others}.items():
                row[column] = f"{100 * (1 - value / highest):.1f} %" if highest else "-"
            rows.append(row | {"settings": machine.full(name, settings)})
    return pd.DataFrame(rows), tops
