"""The options of a run, with defaults and ranges; conf/config.yaml explains them.

All ranges and combinations are checked here, before anything is loaded. Errors name the option, its
value and the remedy in one line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from omegaconf import OmegaConf
from transformers import RepetitionPenaltyLogitsProcessor

from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.decoder_factory import check_decoders, needs_draft
from ouroboros.instantiate import check_whole
from ouroboros.processors import Processed
from ouroboros.select import Sampler, TokenSelector, argmax

SWITCHES = ("overwrite", "retry_failed", "timing", "record_predictions", "refill")
CHOICES: dict[str, tuple] = {
    "audit": ("none", "differing", "all"),
    "parallel": ("tree", None),
    **dict.fromkeys(SWITCHES, (True, False)),
}
RANGES = {
    "temperature": (0.0, math.inf, "of 0 (greedy) or more"),
    "top_p": (1e-9, 1.0, "above 0, up to 1 (no cut)"),
    "min_p": (0.0, 1.0, "from 0 (no cut) to 1"),
    "repetition_penalty": (1e-9, math.inf, "above 0; 1 is none"),
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are selected; the options are those of conf/config.yaml.

    The seed of a completion depends only on the run's `seed`, the example and the repeat, so every
    decoder, a resumed run and a replay draw the same tokens.
    """

    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, least=0)
        check_whole("top_k", self.top_k, least=0)
        for name, (low, high, words) in RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise ValueError(f"{name}={value}: give a number {words}")

    @property
    def without_effect(self) -> list[str]:
        """The options that are set although the temperature is 0, where they have no effect."""
        drawn = () if self.temperature else ("seed", "top_k", "top_p", "min_p")
        return [name for name in drawn if getattr(self, name) != getattr(Sampling, name)]

    def choose(self, example: str, repeat: int, *, vocab: int) -> TokenSelector:
        """Return the token selector for a repeat of the example with this id; `vocab` is the
        target's vocabulary size."""
        choose: TokenSelector = argmax
        if self.temperature:
            cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
            seed = derive_seed(self.seed, example, repeat)
            choose = Sampler(temperature=self.temperature, seed=seed, **cuts)  # type: ignore[arg-type]
        if self.repetition_penalty == 1.0:
            return choose
        penalty = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        return Processed(choose, [penalty], vocab=vocab)


def derive_seed(seed: int, example: str, repeat: int) -> int:
    """Return a 62-bit seed that depends on the run's seed, the example's id and the repeat."""
    digest = hashlib.sha256(f"{seed}\0{example}\0{repeat}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 2


@dataclass(frozen=True)
class RunConfig:
    """All options of a run, as explained in conf/config.yaml.

    `decoder` maps names to decoder configs, as for `make_decoder`. Raises `ValueError` for values
    and combinations that cannot run.
    """

    model: PairSpec
    task: TaskSpec
    decoder: Mapping[str, Mapping[str, object]]
    sampling: Sampling = field(default_factory=Sampling)
    max_new: int | None = None
    repeats: int = 1
    batch_size: int = 1
    refill: bool = False
    context_tokens: int | None = None
    threads: int | None = None
    parallel: str | None = None
    audit: str = "differing"
    results_dir: str | None = None
    overwrite: bool = False
    retry_failed: bool = False
    timing: bool = True
    costs: str | Mapping | None = None
    published: Mapping | None = None
    record_predictions: bool = False

    @classmethod
    def from_mapping(cls, options: Mapping) -> RunConfig:
        """Return the config for plain values, as in conf/config.yaml and run.json; missing options
        get their defaults. Raises `ValueError` for unknown options and invalid values."""
        own = {"decoder": {}, **options}
        drawn = {f.name for f in fields(Sampling)}
        known = {f.name for f in fields(cls)} - {"sampling"} | drawn
        for name in own.keys() - known:
            raise ValueError(
                f"{name} is no option of a run: choose from {', '.join(sorted(known))}"
            )
        for name in ("model", "task", "decoder"):
            check_settings(name, own.get(name))
        own["model"] = PairSpec.from_mapping(own["model"])
        own["task"] = TaskSpec.from_mapping(own["task"])
        return cls(sampling=Sampling(**{n: own.pop(n) for n in drawn & own.keys()}), **own)

    def to_mapping(self) -> dict:
        """Return the config as plain values; the inverse of `from_mapping`."""
        values = {**asdict(self), "task": self.task.to_mapping()}
        return values | values.pop("sampling")

    def replaced(self, overrides: Mapping[str, object]) -> RunConfig:
        """Return the config with some options overridden: {"task.path": value}."""
        options = OmegaConf.create(self.to_mapping())
        for name, value in overrides.items():
            OmegaConf.update(options, name, value, merge=False, force_add=True)
        return RunConfig.from_mapping(OmegaConf.to_container(options))  # type: ignore[arg-type]

    @property
    def needs_draft(self) -> bool:
        """Whether any decoder drafts with a draft model."""
        return any(map(needs_draft, self.decoder.values()))

    def files(self) -> dict[str, Path]:
        """Return the files, folders and hub ids that the config names, as {option: path}, for
        example "costs", "task.path" or "model.target". The paths need not exist."""
        found = {"costs": Path(self.costs)} if isinstance(self.costs, str) else {}
        for name, own in self.decoder.items():
            known = ("pool", "costs", "weights", "path")
            options = [option for option in known if own.get(option)]
            found |= {f"decoder.{name}.{option}": Path(str(own[option])) for option in options}
        return {**self.model.files(), **self.task.files(), **found}

    def __post_init__(self) -> None:
        for name in ("max_new", "repeats", "threads", "context_tokens", "batch_size"):
            check_whole(name, getattr(self, name), null=name not in ("repeats", "batch_size"))
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if (type(value), value) not in [(type(choice), choice) for choice in choices]:
                known = ", ".join(json.dumps(choice).strip('"') for choice in choices)
                raise ValueError(f"{name}={value}: choose one of {known}")
        if self.record_predictions and self.timing:
            raise ValueError("record_predictions=true slows every step: give timing=false as well")
        if self.batch_size > 1 and self.parallel:
            raise ValueError("parallel=tree decodes one sequence at a time: give batch_size=1")
        for name in ("options", "target_options", "draft_options") if self.parallel else ():
            if plan := {"tp_plan", "distributed_config"} & getattr(self.model, name).keys():
                raise ValueError(
                    f"parallel=tree with model.{name}.{min(plan)}: transformers would spread one "
                    "model over all processes; leave one of the two out"
                )
        check_published(self.published)
        self.model.path("target")
        for name, own in self.decoder.items():
            check_settings(f"decoder.{name}", own)
        check_decoders(self.decoder)
        for name, own in self.decoder.items():
            if own.get("verification") == "rejection" and self.sampling.repetition_penalty != 1.0:
                raise ValueError(
                    f"decoder.{name}.verification=rejection supports no repetition_penalty: "
                    "give 1.0"
                )


def check_published(given: object) -> None:
    """Raise `ValueError` unless `given`, the option `published`, is one that a report can show."""
    if given is None:
        return
    named = isinstance(given, Mapping) and given.keys() <= {"source", "hardware", "tokens_per_s"}
    speeds = given.get("tokens_per_s", {}) if named else None  # type: ignore[attr-defined]
    numbers = speeds.values() if isinstance(speeds, Mapping) else [0]
    if not all(type(number) in (int, float) and 0 < number < math.inf for number in numbers):
        form = "{source: ..., hardware: ..., tokens_per_s: {<decoder>: <number above 0>}}"
        raise ValueError(f"published={given}: give {form}")


def check_settings(name: str, value: object) -> None:
    """Raise `ValueError` unless `value`, the settings of the option `name`, is a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={value}: give settings, as {{name: value}}")
