"""A search for a decoder's best settings, on texts that all decoders share, by a machine's costs.

Random settings on a few of the texts, then from the best of them one setting after the other
until none gains; the last candidates are compared on all texts.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from omegaconf import OmegaConf
from scipy.stats import gmean

from ouroboros.bench.metrics.intervals import calls_part, pooled
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.replay.same_text import Text
from ouroboros.bench.run.config import with_overrides
from ouroboros.cli.configs import SPACES
from ouroboros.costs import CostModel, Costs
from ouroboros.decoders import make_decoder, wants_costs
from ouroboros.engine.model import CachedModel

FINALISTS = 3
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
        spent = pooled(samples, part=CostModel(costs).cost)
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
        own = OmegaConf.create(with_overrides(self.configs[decoder], settings))
        found = {key: OmegaConf.select(own, key) for key in SPACES[decoder]}
        return {key: value for key, value in found.items() if value is not None}

    def samples(self, decoder: str, settings: Settings, among: Sequence[Text]) -> list[Sample]:
        """Return the decoder's sample on each text, from before where it was there. Raises
        `ValueError` for settings that it does not take."""
        config = with_overrides(self.configs[decoder], settings)
        asks = self.name if wants_costs(config) else ""
        key = json.dumps(self.full(decoder, settings), sort_keys=True)
        self.tried.setdefault(decoder, set()).add(key)
        new = [text for text in among if (decoder, asks, key, id(text)) not in self.seen]
        if new:
            made = make_decoder(config, self.draft, costs=self.costs)
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
    ) -> dict:
        """Return the best settings on all texts: of the configured, and of the best that the
        trials and a climb from the best of them gave on a few."""
        rates = {trial.name: self.rate(decoder, trial.settings, few) for trial in trials}
        ranked = sorted(trials, key=lambda trial: -rates[trial.name])
        top = self.climb(decoder, self.full(decoder, ranked[0].settings), few)
        last = [{}, top, *(trial.settings for trial in ranked[: FINALISTS - 1])]
        return self.full(decoder, max(last, key=lambda one: self.rate(decoder, one, all_)))
