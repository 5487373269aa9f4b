"""The options of a run with their defaults and ranges: what conf/config.yaml sets.

Every range and combination is checked here, before anything is loaded. Errors name the option, its
value and the remedy in one line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from transformers import RepetitionPenaltyLogitsProcessor

from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.decoders import check_decoders, needs_draft
from ouroboros.processors import processed
from ouroboros.reference_pair import FOLDER
from ouroboros.select import Sampler, TokenSelector, argmax

CHOICES = {
    "audit": ("none", "differing", "all"),
    "parallel": ("tree", None),
    "parallel_draft": ("every", "first", "shared", None),
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are selected.

    The seed of a sample depends on the run's seed, the example and the repeat alone, so every
    decoder, a resumed run and a replay draw the same tokens.
    """

    seed: int = 0
    temperature: float = 0.0  # 0: greedy decoding
    top_k: int = 0  # 0: no cut
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, least=0)
        check_whole("top_k", self.top_k, least=0)
        for name, low, high, words in (
            ("temperature", 0.0, math.inf, "of 0 (greedy) or more, or matched"),
            ("top_p", 1e-9, 1.0, "above 0, up to 1 (no cut)"),
            ("min_p", 0.0, 1.0, "from 0 (no cut) to 1"),
            ("repetition_penalty", 1e-9, math.inf, "above 0; 1 is none"),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise ValueError(f"{name}={value}: give a number {words}")

    def choose(self, example: str, sample: int, *, vocab: int) -> TokenSelector:
        """Return the token selector of an example's repeat `sample`, the same for every decoder;
        `vocab` is the target's vocabulary size."""
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
    """Return a 62-bit seed that depends on run seed, example and repeat."""
    digest = hashlib.sha256(f"{seed}\0{example}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 2


@dataclass(frozen=True)
class RunConfig:
    """All options of a run. Raises `ValueError` for values and combinations that cannot run."""

    model: PairSpec
    task: TaskSpec
    decoder: Mapping[str, Mapping[str, object]]
    """Decoder configs by name; `ouroboros.decoders.make_decoder` takes each."""
    sampling: Sampling = field(default_factory=Sampling)
    max_new: int | None = None
    """New tokens per prompt; None: the task's default."""
    repeats: int = 1
    """Times that each decoder decodes each prompt; with a temperature, independent samples."""
    context_tokens: int | None = None
    """Pad each prompt with other prompts of the task to this many tokens."""
    part: str | None = None
    """Shard of the prompts, as "2/4"; a report joins the shards."""
    threads: int | None = None
    """CPU threads; None: torch's default."""
    parallel: str | None = None
    """"tree": share each tree among the processes of torchrun, which all hold both models."""
    parallel_draft: str | None = None
    """Where the draft then runs: on every rank, on the first, or shared; None: by the costs."""
    audit: str = "differing"
    """Which completions to audit: those that differ from greedy's, all with controls, or none."""
    results_dir: str | None = None
    """None: results/local/<task>-<model>-<time>."""
    overwrite: bool = False
    """Replace the run in `results_dir`."""
    retry_failed: bool = False
    """Measure the failed samples of the run in `results_dir` again."""
    save_pools: bool = False
    """Keep the phrase pools that decoders carry from prompt to prompt."""
    timing: bool = True
    """False: other jobs share the device, so only counts are reported."""
    costs: str | Mapping | None = None
    """Call costs for decoders and report: a name, a file, a folder of a timed run or a table; None:
    measured at load where a decoder asks for costs (named ones without `timing`)."""
    published: Mapping | None = None
    """{source, hardware, tokens_per_s: {decoder: ...}} of a published run."""
    record_trees: bool | None = None
    """Write the first repeat's trees; None: of decoders that give node probabilities."""
    record_predictions: bool = False
    """Write the target's prediction at every node, for replays of any drafter."""

    @classmethod
    def from_mapping(cls, options: Mapping) -> RunConfig:
        """Return the config of plain values, as conf/config.yaml and run.json have them.

        Options that are missing have their defaults; `temperature` may be "matched".
        """
        own = {"decoder": {}, **options}
        drawn = {f.name for f in fields(Sampling)}
        known = {f.name for f in fields(cls)} - {"sampling"} | drawn
        for name in own.keys() - known:
            raise ValueError(
                f"{name} is no option of a run: choose from {', '.join(sorted(known))}"
            )
        own["model"] = PairSpec.from_mapping(own["model"])
        own["task"] = TaskSpec.from_mapping(own["task"])
        sampling = {name: own.pop(name) for name in drawn & own.keys()}
        if sampling.get("temperature") == "matched":
            sampling["temperature"] = matched_temperature(own["model"].target)
        return cls(sampling=Sampling(**sampling), **own)

    def to_mapping(self) -> dict:
        """Return plain values, as `from_mapping` takes them."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sampling"}
        model, task = asdict(self.model), self.task.to_mapping()
        return {**values, **asdict(self.sampling), "model": model, "task": task}

    def replaced(self, overrides: Mapping[str, object]) -> RunConfig:
        """Return the config with some values replaced, by their dotted names."""
        return RunConfig.from_mapping(with_overrides(self.to_mapping(), overrides))

    @property
    def needs_draft(self) -> bool:
        """Whether a decoder drafts with a model."""
        return any(map(needs_draft, self.decoder.values()))

    @property
    def carried_pools(self) -> list[str]:
        """The decoders whose phrase pool is carried from prompt to prompt."""
        return [name for name, own in self.decoder.items() if own.get("pool_state") == "task"]

    def files(self) -> dict[str, Path]:
        """Return the files and folders that the config names, by option; some may not exist."""
        found = {**self.model.files(), **self.task.files()}
        if isinstance(self.costs, str):
            found["costs"] = Path(self.costs)
        for name, own in self.decoder.items():
            for option in ("pool", "costs", "weights"):
                if own.get(option):
                    found[f"decoder.{name}.{option}"] = Path(str(own[option]))
        return found

    def __post_init__(self) -> None:
        for name, value, null in (
            ("max_new", self.max_new, True),
            ("repeats", self.repeats, False),
            ("threads", self.threads, True),
            ("context_tokens", self.context_tokens, True),
            ("task.limit", self.task.limit, True),
            ("task.stride", self.task.stride, False),
        ):
            check_whole(name, value, null=null)
        for name in ("overwrite", "retry_failed", "save_pools", "timing", "record_predictions"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)}: give true or false")
        if not isinstance(self.record_trees, bool | None):
            raise ValueError(f"record_trees={self.record_trees}: give true, false or null")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join("null" if choice is None else choice for choice in choices)
                raise ValueError(f"{name}={getattr(self, name)}: choose one of {known}")
        if self.record_predictions and self.timing:
            raise ValueError(
                "record_predictions=true takes time in every step: give timing=false as well"
            )
        for name in ("options", "target_options", "draft_options"):
            for plan in ("tp_plan", "distributed_config"):
                if self.parallel and getattr(self.model, name).get(plan) is not None:
                    raise ValueError(
                        f"parallel=tree with model.{name}.{plan}: transformers would spread one "
                        "model over all processes; leave one of the two out"
                    )
        check_decoders(self.decoder)
        if self.save_pools and not self.carried_pools:
            raise ValueError(
                "save_pools=true, but no decoder's pool outlives a prompt: give "
                "decoder.ouroboros.pool_state=task, or leave save_pools out"
            )
        for name, own in self.decoder.items():
            state, pool, what = own.get("pool_state"), own.get("pool"), f"decoder.{name}"
            if state == "loaded" and not pool:
                raise ValueError(
                    f"{what}.pool_state=loaded needs {what}.pool=<file>; a run with "
                    f"{what}.pool_state=task and save_pools=true writes one"
                )
            if state == "cold" and pool:
                raise ValueError(
                    f"{what}.pool={pool}, but a cold start would empty it: give "
                    f"{what}.pool_state=loaded or task"
                )
            if own.get("verification") == "rejection" and self.sampling.repetition_penalty != 1.0:
                raise ValueError(
                    f"{what}.verification=rejection supports no repetition_penalty: give 1.0"
                )


def check_whole(name: str, value: object, *, least: int = 1, null: bool = False) -> None:
    """Raise `ValueError` unless `value` is a whole number, `least` or more (`null`: or None)."""
    if value is None and null:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        remedy = f"give a whole number, {least} or more" + (", or null" if null else "")
        raise ValueError(f"{name}={value}: {remedy}")


def matched_temperature(target: str | None) -> float:
    """Return the temperature at which the reference pair's text repeats itself as often as a real
    model's greedy text. Raises `ValueError` for other targets, where it is not known."""
    if target != "reference/target":
        raise ValueError(
            f"temperature=matched is known of reference/target, not of {target}: give a number"
        )
    return json.loads((FOLDER / "evaluation.json").read_text())["matched_temperature"]


def with_overrides(options: Mapping, overrides: Mapping[str, object]) -> dict:
    """Return nested options with some values replaced or added, by their dotted names.

    >>> with_overrides({"task": {"limit": 3}}, {"task.limit": 5, "seed": 1})
    {'task': {'limit': 5}, 'seed': 1}
    """
    found = deepcopy(dict(options))
    for name, value in overrides.items():
        *parents, last = name.split(".")
        below = found
        for parent in parents:
            below[parent] = dict(below.get(parent) or {})
            below = below[parent]
        below[last] = value
    return found
