"""Counts and predicted speedups of every decoder with drafts imitated at some agreements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm

from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.imitation import Rates
from ouroboros.bench.replay.recording import RecordedRuns, Recording
from ouroboros.cli.advising.search import Explorer, Imitated, Settings
from ouroboros.cli.tapes import imitated_draft
from ouroboros.costs import Costs
from ouroboros.decoders import wants_costs
from ouroboros.tuning.agreement import ALL, Worth
from ouroboros.tuning.predict import predict


@dataclass
class Searched(Imitated):
    """Counts on some texts with one draft, each made once; only the ranges given are searched."""

    ranges: Mapping[str, Mapping[str, Sequence]] = field(default_factory=dict)
    off_text: Rates | None = None
    known: dict[str, list[Sample]] = field(default_factory=dict)

    def counts(self, name: str, settings: Settings) -> list[Sample]:
        """Return a sample for each text."""
        costs = self.costs if wants_costs(self.decoders[name]) else None
        key = f"{name} {sorted(settings.items())} {costs}"
        if key not in self.known:
            self.known[key] = super().counts(name, settings)
        return self.known[key]

    def rates_for(self, name: str) -> Rates | None:
        """Return the rates given: without any, no decoder may read predictions off the text."""
        return self.off_text

    def space(self, name: str) -> Mapping[str, Sequence]:
        """Return the ranges of a decoder."""
        return self.ranges.get(name, {})


@dataclass
class Worths:
    """What every decoder is worth: one in `held_out` prompts of each group chooses settings, the
    rest tell."""

    config: dict
    tape: RecordedRuns
    machines: Mapping[tuple[str, float], Costs]
    tokenizer: object
    rates: Rates | None

    def rows(self) -> Iterator[Worth]:
        """Yield the worth of every decoder for each agreement, costs and group."""
        decoders = self.config["decoder"]
        drafting = [name for name, own in decoders.items() if "draft" in own]
        others = [name for name in decoders if name not in (PLAIN, *drafting)]
        yield from self._with(None, others)
        for agreement in tqdm(self.config["agreement"], desc="agreements", leave=False):
            yield from self._with(agreement, drafting)

    def parts(self) -> tuple[list[Recording], list[Recording]]:
        """Return the runs that settings are chosen on, and those that are shown."""
        step = self.config["held_out"]
        held = {e for own in by_group(self.tape.runs).values() for e in own[step - 1 :: step]}
        runs = self.tape.runs
        return [r for r in runs if r.example in held], [r for r in runs if r.example not in held]

    def _with(self, agreement: float | None, names: Sequence[str]) -> Iterator[Worth]:
        draft = None
        if agreement is not None:
            options = {**self.config["draft"], "agreement": agreement}
            draft = imitated_draft(options, self.tape, self.tokenizer)
        sources = [
            Searched(
                replace(self.tape, runs=part),
                draft,
                self.config["decoder"],
                ranges=self.config["search"] or {},
                off_text=self.rates,
            )
            for part in self.parts()
        ]
        for (costs, ratio), machine in self.machines.items():
            for source in sources:
                source.costs = machine
            tried, shown = (Explorer(s, machine, self.config["decoder"]) for s in sources)
            for name in names:
                best = tried.best(name, tried.predicted(name, {}))
                if best.failed:
                    raise ValueError(f"{name}: {best.failed}")
                samples = sources[1].counts(name, best.settings)
                for group, plain, ours in grouped(shown.plain, samples):
                    found = predict(plain, ours, machine)
                    assert found.speedup is not None, found.failed
                    prompts = len({sample.example for sample in ours})
                    yield Worth(
                        group, costs, ratio, name, agreement, found.speedup, prompts, best.settings
                    )


def grouped(
    plain: Sequence[Sample], samples: Sequence[Sample]
) -> Iterator[tuple[str, list[Sample], list[Sample]]]:
    """Yield both sides by group, and all together where there are several."""
    groups = list(dict.fromkeys(sample.group for sample in samples))
    for group in groups if len(groups) > 1 else ():
        own = [[s for s in side if s.group == group] for side in (plain, samples)]
        yield group, own[0], own[1]
    yield ALL, list(plain), list(samples)


def by_group(runs: Sequence[Recording]) -> dict[str, list[str]]:
    """Return the examples of each group, in order."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        found[run.group][run.example] = None
    return {group: list(examples) for group, examples in found.items()}
