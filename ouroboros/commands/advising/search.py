"""Counts of decoders at settings that were not run, and the best of them by predicted time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hydra.utils import instantiate
from omegaconf import OmegaConf

from ouroboros.bench.advice.predict import PLAIN, Prediction, predict
from ouroboros.bench.measure.sample import Sample
from ouroboros.bench.replay.imitation import USUAL, Rates
from ouroboros.bench.replay.recorded_target import check_drafter, replay, sampled
from ouroboros.bench.replay.recording import Tape
from ouroboros.bench.replay.truncation import truncated
from ouroboros.commands.build import wants_costs
from ouroboros.commands.tune import SPACES
from ouroboros.costs.surface import Costs
from ouroboros.decode import Drafter, RootOnly
from ouroboros.engine.model import CachedModel

Settings = Mapping[str, object]


class Source(Protocol):
    """Where the counts of a decoder at some settings come from."""

    def counts(self, name: str, settings: Settings) -> list[Sample]:
        """Return a sample, without times, for each prompt. `settings` replace configured ones.
        Raises `ValueError` for what cannot be told."""
        ...

    def space(self, name: str) -> Mapping[str, Sequence]:
        """Return the ranges of the settings that can be told."""
        ...


@dataclass
class Imitated:
    """Counts of any drafter at any settings, imitated on recorded texts.

    `decoders` are their configs by name, `rates` how often the target errs off the text: by name or
    kind of decoder, "" for any, and `costs` what decoders that ask are told that calls cost.
    """

    tape: Tape
    draft: CachedModel | None
    decoders: Mapping[str, dict]
    rates: Mapping[str, Rates] = field(default_factory=dict)
    costs: Costs | None = None

    def counts(self, name: str, settings: Settings) -> list[Sample]:
        """Return a sample for each text."""
        drafter = RootOnly() if name == PLAIN else self.made(name, settings)
        rates = self.rates_for(name)
        check_drafter(drafter, self.tape, rates=rates)
        return [
            sampled(name, run, replay(drafter, self.tape, run, rates=rates))
            for run in self.tape.runs
        ]

    def space(self, name: str) -> Mapping[str, Sequence]:
        """Return what `tune` searches: by the decoder's name, else by its class."""
        config = self.decoders[name]
        if config.get("policy") == "paper":
            return SPACES["ouroboros_paper"]
        return SPACES.get(kind_of(config), {})

    def rates_for(self, name: str) -> Rates | None:
        """Return the rates of a decoder by its name, else its kind's, any other's, the usual."""
        keys = (name, kind_of(self.decoders.get(name, {})), "")
        return next((self.rates[key] for key in keys if key in self.rates), USUAL)

    def made(self, name: str, settings: Settings) -> Drafter:
        """Build a decoder. Raises `ValueError` for settings that it does not take."""
        config = self.decoders[name]
        options = OmegaConf.create({k: v for k, v in config.items() if k not in ("draft", "pool")})
        for key, value in settings.items():
            OmegaConf.update(options, key, value, force_add=True)
        given: dict[str, object] = {"draft": self.draft} if "draft" in config else {}
        if wants_costs({name: config}):
            given["costs"] = self.costs
        try:
            return instantiate(options, _partial_=True, _convert_="all")(**given)
        except TypeError as error:
            raise ValueError(f"decoder.{name}: {error}") from error


@dataclass
class OnRecord:
    """Counts of saved samples alone, with no model and no text: the recorded settings, and smaller
    gammas of a plain speculative decoder. `decoders` are the configs of the recorded run."""

    samples: Sequence[Sample]
    decoders: Mapping[str, dict]
    max_new: int

    def counts(self, name: str, settings: Settings) -> list[Sample]:
        """Return the recorded samples, their drafts cut to a smaller gamma if it is asked for."""
        own = [s for s in self.samples if s.decoder == name and not s.error]
        if not own:
            raise ValueError("it is not on record")
        if not all(step.scored for sample in own for step in sample.steps):
            raise ValueError("it is another engine, whose calls are not on record")
        if not settings:
            return own
        if set(settings) != {"gamma"}:
            raise ValueError(f"counts alone do not tell what {dict(settings)} would do")
        recorded = self.decoders[name]["gamma"]
        gamma = int(str(settings["gamma"]))
        return [truncated(s, gamma, max_new=self.max_new, recorded=recorded) for s in own]

    def space(self, name: str) -> Mapping[str, Sequence]:
        """Return the gammas up to the recorded one of a speculative decoder, {} for others."""
        config = self.decoders.get(name, {})
        plain = kind_of(config) == "speculative"
        return {"gamma": range(1, config["gamma"] + 1)} if plain else {}


class Explorer:
    """Predicts decoders by a source of counts and a machine's costs."""

    def __init__(self, source: Source, costs: Costs, decoders: Mapping[str, dict]) -> None:
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
