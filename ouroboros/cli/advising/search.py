"""Counts of decoders at settings that were not run, and the best of them by predicted time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from omegaconf import OmegaConf

from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.replay.imitation import USUAL, Rates
from ouroboros.bench.replay.recorded_target import check_drafter, replay, sampled
from ouroboros.bench.replay.recording import RecordedRuns
from ouroboros.bench.run.config import with_overrides
from ouroboros.cli.configs import SPACES
from ouroboros.costs import Costs
from ouroboros.decode import Drafter, RootOnly
from ouroboros.decoders import make_decoder
from ouroboros.engine.model import CachedModel
from ouroboros.tuning.predict import Prediction, predict

Settings = Mapping[str, object]


@dataclass
class Imitated:
    """Counts of any drafter at any settings, imitated on recorded texts.

    `decoders` are their configs by name, `rates` how often the target errs off the text: by name or
    kind of decoder, "" for any, and `costs` what decoders that ask are told that calls cost.
    """

    tape: RecordedRuns
    draft: CachedModel | None
    decoders: Mapping[str, dict]
    rates: Mapping[str, Rates] = field(default_factory=dict)
    costs: Costs | None = None

    def counts(self, name: str, settings: Settings) -> list[Sample]:
        """Return a sample for each text."""
        drafter = RootOnly() if name == PLAIN else self.made(name, settings)
        rates = self.rates_for(name)
        check_drafter(drafter, self.tape, rates=rates)
        runs = self.tape.runs
        return [sampled(name, run, replay(drafter, self.tape, run, rates=rates)) for run in runs]

    def space(self, name: str) -> Mapping[str, Sequence]:
        """Return what `tune` searches: by the decoder's name, else by its class."""
        return SPACES.get(kind_of(self.decoders[name]), {})

    def rates_for(self, name: str) -> Rates | None:
        """Return the rates of a decoder by its name, else its kind's, any other's, the usual."""
        keys = (name, kind_of(self.decoders.get(name, {})), "")
        return next((self.rates[key] for key in keys if key in self.rates), USUAL)

    def made(self, name: str, settings: Settings) -> Drafter:
        """Build a decoder; `check_drafter` refuses other engines' later. Raises `ValueError` for
        settings that it does not take."""
        own = with_overrides(self.decoders[name], settings)
        made = make_decoder(own, self.draft, costs=self.costs)
        return made  # type: ignore[return-value]


class Explorer:
    """Predicts decoders by a source of counts and a machine's costs."""

    def __init__(self, source: Imitated, costs: Costs, decoders: Mapping[str, dict]) -> None:
        self.source, self.costs, self.decoders = source, costs, decoders
        self.plain = source.counts(PLAIN, {})
        self.asked = 0

    def predicted(self, name: str, settings: Settings) -> Prediction:
        """Return the prediction for a decoder with some of its configured settings replaced."""
        self.asked += 1
        try:
            counts = self.source.counts(name, settings)
        except ValueError as error:
            return Prediction(dict(settings), failed=str(error))
        return predict(self.plain, counts, self.costs, settings=settings)

    def best(
        self, name: str, start: Prediction, on_try: Callable[[], object] = lambda: None
    ) -> Prediction:
        """Return the fastest prediction of a search from the configured settings on: one setting
        after the other, each over its whole range."""
        found = start
        for key, values in self.source.space(name).items():
            for value in values:
                if value != current(self.decoders[name], found.settings, key):
                    tried = self.predicted(name, {**found.settings, key: value})
                    found = max(found, tried, key=lambda one: one.tokens_per_s)
                    on_try()
        return found


def kind_of(config: Mapping) -> str:
    """Return what a decoder's class is called in conf/decoder, "" without a class.

    >>> kind_of({"_target_": "ouroboros.baselines.PromptLookup"})
    'prompt_lookup'
    """
    name = config.get("_target_", "").rpartition(".")[2]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def current(config: Mapping, settings: Settings, key: str) -> object:
    """Return a setting's value: the replaced one, else the configured one, else None."""
    return settings.get(key, OmegaConf.select(OmegaConf.create(dict(config)), key))
