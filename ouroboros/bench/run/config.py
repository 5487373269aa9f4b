"""Plain values of a run's config, checked before anything is loaded: one line for each mistake."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import RepetitionPenaltyLogitsProcessor

from ouroboros.processors import processed
from ouroboros.select import Sampler, TokenSelector, argmax

WHOLE = {  # name: least value; those in NULLABLE may be null
    "max_new": 1,
    "repeats": 1,
    "seed": 0,
    "top_k": 0,
    "threads": 1,
    "context_tokens": 1,
    "task.limit": 1,
    "task.stride": 1,
}
NULLABLE = ("max_new", "threads", "context_tokens", "task.limit")
RANGES = {  # name: least, greatest, in words
    "temperature": (0.0, math.inf, "of 0 (greedy) or more"),
    "top_p": (1e-9, 1.0, "above 0, up to 1 (no cut)"),
    "min_p": (0.0, 1.0, "from 0 (no cut) to 1"),
    "repetition_penalty": (1e-9, math.inf, "above 0; 1 is none"),
}
OTHERS = (
    *("model", "task", "decoder", "results_dir", "audit", "published", "part", "costs"),
    *("parallel", "parallel_draft"),
)
AUDITS = ("none", "differing", "all")
SWITCHES = ("overwrite", "retry_failed", "save_pools", "timing", "record_predictions")
MAYBE = ("record_trees",)


def check_options(config: Mapping) -> None:
    """Raise `ValueError`, naming option, value and remedy, for values that no run can have."""
    known = {name.split(".")[0] for name in (*WHOLE, *RANGES, *SWITCHES, *MAYBE, *OTHERS)}
    for name in config:
        if name not in known:
            raise ValueError(
                f"{name} is no option of a run: choose from {', '.join(sorted(known))}"
            )
    for name, least in WHOLE.items():
        check_whole(name, _at(config, name), least=least, null=name in NULLABLE)
    for name in RANGES:
        if not isinstance(config[name], int | float) or isinstance(config[name], bool):
            or_matched = ", or matched" if name == "temperature" else ""
            raise ValueError(f"{name}={config[name]}: give a number{or_matched}")
        low, high, words = RANGES[name]
        if not low <= config[name] <= high:
            raise ValueError(f"{name}={config[name]}: give a number {words}")
    for name in SWITCHES:
        if not isinstance(config[name], bool):
            raise ValueError(f"{name}={config[name]}: give true or false")
    for name in MAYBE:
        if not isinstance(config[name], bool | None):
            raise ValueError(f"{name}={config[name]}: give true, false or null")
    if config["audit"] not in AUDITS:
        raise ValueError(f"audit={config['audit']}: choose one of {', '.join(AUDITS)}")
    if config["record_predictions"] and config["timing"]:
        raise ValueError(
            "record_predictions=true takes time in every step: give timing=false as well"
        )
    rejecting = [
        n for n, own in config["decoder"].items() if own.get("verification") == "rejection"
    ]
    if rejecting and config["repetition_penalty"] != 1.0:
        raise ValueError(
            f"decoder.{rejecting[0]}.verification=rejection knows no repetition_penalty: give 1.0"
        )
    _check_pools(config)


def check_whole(name: str, value: object, *, least: int = 1, null: bool = False) -> None:
    """Raise `ValueError` unless `value` is a whole number, `least` or more (`null`: or None)."""
    if value is None and null:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        remedy = f"give a whole number, {least} or more" + (", or null" if null else "")
        raise ValueError(f"{name}={value}: {remedy}")


def _check_pools(config: Mapping) -> None:
    decoders = config["decoder"]
    if config["save_pools"] and not carriers(decoders):
        raise ValueError(
            "save_pools=true, but no decoder's pool outlives a prompt: give "
            "decoder.ouroboros.pool_state=task, or leave save_pools out"
        )
    for name, own in decoders.items():
        state, pool = own.get("pool_state"), own.get("pool")
        if state == "loaded" and not pool:
            raise ValueError(
                f"decoder.{name}.pool_state=loaded needs decoder.{name}.pool=<file>; a run with "
                f"decoder.{name}.pool_state=task and save_pools=true writes one"
            )
        if state == "cold" and pool:
            raise ValueError(
                f"decoder.{name}.pool={pool}, but a cold start would empty it: give "
                f"decoder.{name}.pool_state=loaded or task"
            )


def _at(config: Mapping, name: str):
    value: object = config
    for part in name.split("."):
        value = value[part]  # type: ignore[index]
    return value


def carriers(options: Mapping[str, Mapping]) -> list[str]:
    """Return the names of the configured decoders whose pool outlives a prompt."""
    return [name for name, own in options.items() if own.get("pool_state") == "task"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy decoding; `seed` is the run's."""

    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} must be 0 (greedy) or above")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty {self.repetition_penalty} must be above 0")

    def choose(self, example: str, sample: int, *, vocab: int) -> TokenSelector:
        """Return the chooser of one example's sample number, the same for every decoder; `vocab` is
        the target's."""
        choose: TokenSelector = argmax
        if self.temperature:
            choose = Sampler(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=derive_seed(self.seed, example, sample),
            )
        if self.repetition_penalty == 1.0:
            return choose
        penalty = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        return processed(choose, [penalty], vocab=vocab)


def derive_seed(seed: int, example: str, sample: int) -> int:
    """Return a 62-bit seed that depends on run seed, example and sample number."""
    digest = hashlib.sha256(f"{seed}\0{example}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 2
