"""Tune every decoder on the same recorded texts, each with the same effort.

Plain decoding of each prompt, greedy and sampled, is recorded once, in float32. Decoders are
replayed on these texts; those that ask the target more run live, and must give the same texts.
Invariant: every sample of one text has the text's tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
from scipy.stats import gmean
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import calls_part, pooled
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.replay import check_drafter, replay
from ouroboros.bench.run.folder import ResultsFolder, read_lines
from ouroboros.bench.run.identity import identity, sources_hash
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.tasks.task import Example
from ouroboros.costs import CostModel, Costs
from ouroboros.decode import RootOnly
from ouroboros.decoders import Decoder, make_decoder, wants_costs
from ouroboros.engine.model import CachedModel
from ouroboros.tuning.search import SPACES, Settings, random_settings, search

FINALISTS = 3
SEARCHES = "searches.jsonl"


@dataclass
class Text:
    """A prompt of a task under one bench's sampling, and its plain decoding."""

    task: str
    bench: Bench
    example: Example

    @property
    def cell(self) -> tuple[str, float]:
        """Task and temperature: each cell has the same weight in a score."""
        return self.task, self.bench.sampling.temperature

    @cached_property
    def recorded(self) -> RecordedRuns:
        """The recorded text, a single run. Raises `ValueError` if plain decoding fails."""
        plain, target = self.bench.measure(RootOnly(), self.example, 0), self.bench.target
        if plain.error:
            raise ValueError(f"{self.example.id}: plain decoding failed: {plain.error}")
        prompt = tuple(prompt_ids(target.tokenizer, self.example))
        run = RecordedRun(self.example.id, prompt, plain.new_tokens, plain.finish)
        limits = self.bench.sampling, self.bench.max_new, target.max_len, target.vocab_size
        dtype = str(target.dtype).removeprefix("torch.")
        return RecordedRuns([run], *limits, frozenset(eos_ids(target)), dtype)

    def counts(self, decoder: Decoder, name: str) -> Sample:
        """Return a decoder's sample on this text; `error` is the reason of a failure.

        Decoders that cannot be replayed run live.
        """
        (run,) = self.recorded.runs
        try:
            check_drafter(decoder, self.recorded)
        except ValueError:
            found = replace(self.bench.measure(decoder, self.example, 0), decoder=name)
            if not found.error and tuple(found.new_tokens) != run.new_tokens:
                return replace(found, error="the text is not plain decoding's: is this float32?")
            return found
        try:
            return replay(self.recorded, decoder, name=name)[0]  # type: ignore[arg-type]
        except ValueError as error:
            return Sample(run.example, name, 0, 0, len(run.prompt), error=str(error))


def texts(
    tasks: Mapping[str, Sequence[Example]], benches: Sequence[Bench], limit: int | None = None
) -> list[Text]:
    """Return the first `limit` prompts of every task under every bench, ordered by the prompt's
    place in its task, so that any first part has as many of each task and bench."""
    found = [
        (place, Text(task, bench, example))
        for task, examples in tasks.items()
        for place, example in enumerate(examples[:limit])
        for bench in benches
    ]
    return [text for _, text in sorted(found, key=lambda pair: pair[0])]


@dataclass
class Machine:
    """A machine's costs, the decoders' configs there, and how fast each is at settings.

    `seen` keeps every sample by all that it depends on, and is shared between machines; `tried` are
    the settings of each decoder that were scored.
    """

    name: str
    costs: Costs
    decoders: Mapping[str, Mapping]
    draft: CachedModel | None
    seen: dict[tuple, Sample] = field(default_factory=dict)
    tried: dict[str, set[str]] = field(default_factory=dict)

    def full(self, decoder: str, settings: Settings) -> dict:
        """Return the value of every tuned option, configured ones included; unset ones are left
        out."""
        own = {**self.decoders[decoder], **settings}
        return {key: own[key] for key in SPACES[decoder] if own.get(key) is not None}

    def rate(self, decoder: str, settings: Settings, among: Sequence[Text]) -> float:
        """Return the speed: the geometric mean over cells (task, temperature) of tokens per cost.

        Raises `ValueError` for settings that the decoder does not take.
        """
        config = self.decoders[decoder]
        by_costs = self.name if wants_costs({**config, **settings}) else ""
        key = json.dumps(self.full(decoder, settings), sort_keys=True)
        self.tried.setdefault(decoder, set()).add(key)
        new = [text for text in among if (decoder, by_costs, key, id(text)) not in self.seen]
        if new:
            made = make_decoder(config, self.draft, costs=self.costs, **settings)
        for text in new:
            self.seen[decoder, by_costs, key, id(text)] = text.counts(made, decoder)
        cells: dict[tuple, list[Sample]] = {}
        for text in among:
            sample = self.seen[decoder, by_costs, key, id(text)]
            cells.setdefault(text.cell, []).append(sample)
        found = [speed(own, self.costs) for own in cells.values()]
        return float(gmean(found)) if min(found) > 0 else 0.0

    def best(
        self,
        decoder: str,
        trials: Sequence[Settings],
        few: Sequence[Text],
        every: Sequence[Text],
    ) -> dict:
        """Return the best settings on every text among the configured ones, the best trials on a
        `few` texts, and where a coordinate search from the best trial ends."""
        ranked = sorted(trials, key=lambda own: -self.rate(decoder, own, few))
        top = search(
            lambda own: self.rate(decoder, own, few),
            SPACES[decoder],
            start=self.full(decoder, ranked[0]),
        )
        last = [{}, top, *ranked[: FINALISTS - 1]]
        return self.full(decoder, max(last, key=lambda own: self.rate(decoder, own, every)))


def speed(samples: Sequence[Sample], costs: Costs) -> float:
    """Return tokens per cost, pooled: a target call on one node costs 1. 0 if a sample failed.

    Of an engine that does not say what its calls score, each call costs as one of one node, which
    is in its favour.
    """
    if not samples or any(sample.error for sample in samples):
        return 0.0
    try:
        spent = pooled(samples, part=CostModel(costs).cost)
    except ValueError:
        ratio = costs.draft_ratio() or 0.0
        spent = pooled(samples, part=partial(calls_part, cost_ratio=ratio))
    return 1 / spent.value if spent and spent.value else 0.0


def tune(
    machines: Sequence[Machine],
    on: Sequence[Text],
    names: Sequence[str],
    results: Path,
    *,
    trials: int = 24,
    first: int | None = None,
    seed: int = 0,
    about: object = None,
) -> tuple[pd.DataFrame, dict[str, dict[str, dict]]]:
    """Search every decoder by each machine's costs; return a report and the best settings, by
    decoder and machine.

    Each decoder tries its configured settings and random ones, `trials` in all, on the `first`
    texts, then a coordinate search from the best; the last candidates are compared on all texts.
    The report says what the configured settings lose against the best found ("regret"), and what
    the other machines' best settings lose. Finished searches are kept in the folder `results` and
    skipped when the same search is run again; `about` (JSON values) identifies what they share.
    """
    of = identity(sources_hash(), [(*t.cell, t.recorded.runs[0].tokens) for t in on], about, SPACES)
    jobs = [(name, machine) for name in names for machine in machines]
    best: dict[tuple[str, str], dict] = {}
    folder = ResultsFolder(results)
    with folder.locked(SEARCHES):
        done = {row["key"]: row for row in read_lines(results / SEARCHES)}
        for name, machine in tqdm(jobs, desc="searches", unit="search"):
            own = asdict(machine.costs), dict(machine.decoders[name])
            key = identity(of, trials, first, seed, name, *own)
            if key not in done:
                drawn = random_settings(SPACES[name], trials, f"{seed}-{name}")
                found = machine.best(name, drawn, on[:first], on)
                done[key] = {"key": key, "settings": found, "tried": sorted(machine.tried[name])}
                folder.append(SEARCHES, done[key])
            best[name, machine.name] = done[key]["settings"]
            machine.tried.setdefault(name, set()).update(done[key]["tried"])
    top = {
        (name, m.name): max(
            (best[name, other.name] for other in machines),
            key=partial(m.rate, name, among=on),
        )
        for name, m in jobs
    }
    rows = []
    for name, machine in jobs:
        rates = {m.name: machine.rate(name, top[name, m.name], on) for m in machines}
        highest, configured = rates.pop(machine.name), machine.rate(name, {}, on)

        def lost(rate: float, highest: float = highest) -> str:
            return f"{100 * (1 - rate / highest):.1f} %" if highest else "-"

        rows.append(
            {
                "decoder": name,
                "costs": machine.name,
                "configured": round(configured, 3),
                "best found": round(highest, 3),
                "regret": lost(configured),
                **{f"best by {other}": lost(rate) for other, rate in rates.items()},
                "settings tried": len(machine.tried[name]),
                "settings": machine.full(name, top[name, machine.name]),
            }
        )
    return pd.DataFrame(rows), {
        name: {machine.name: top[name, machine.name] for machine in machines} for name in names
    }
