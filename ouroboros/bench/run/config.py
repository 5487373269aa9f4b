"""The options of a run, with their defaults. Hydra composes conf/bench.yaml over `RunConfig`.

OmegaConf checks names and types; ranges and combinations are checked here, before anything is
loaded. Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from omegaconf import MISSING, OmegaConf

from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.core.instantiate import check_whole

if TYPE_CHECKING:
    from ouroboros.core.select import TokenSelector

CHOICES = {"audit": ("none", "differing", "all"), "parallel": ("tree", None)}
RANGES = {
    "temperature": (0.0, math.inf, "of 0 (greedy) or more"),
    "top_p": (1e-9, 1.0, "above 0, up to 1 (no cut)"),
    "min_p": (0.0, 1.0, "from 0 (no cut) to 1"),
    "repetition_penalty": (1e-9, math.inf, "above 0; 1 is none"),
}


@dataclass
class PairSpec:
    """The options `model.*` of a run, from which `load_pair` loads the models.

    `standin` maps roles to shapes by name: each Llama model is embedded in a larger one of this
    shape, whose calls cost as much as a real model's. Values of `options` with a `_target_` are
    instantiated.
    """

    name: str = "hf"  # the pair's name in the name of the results folder
    target: str | None = None  # a hub id, folder, GGUF file, or reference/target; required
    draft: str | None = None  # only for decoders that draft with a model
    dtype: str = "auto"  # auto, or a torch dtype (see `dtype_of`)
    device: str | None = None  # None: cuda if available, else cpu; not with a device_map
    max_len: int | None = None  # positions; None: the model's limit
    engine: str = "auto"  # as in `CachedModel`
    standin: Any = None  # {target: shape, draft: shape or null}
    options: dict[str, Any] = field(default_factory=dict)  # for from_pretrained, both models
    target_options: dict[str, Any] = field(default_factory=dict)  # for the target only
    draft_options: dict[str, Any] = field(default_factory=dict)
    draft_context: int | None = None  # the draft reads at most this many last prompt tokens
    draft_head: Any = "auto"  # the draft scores only this many ids; auto: those of head_ids.json

    def __post_init__(self) -> None:
        if not self.target:
            raise ValueError("give model.target=<hub id or folder>")
        check_whole("model.draft_context", self.draft_context, null=True)
        if self.draft_head != "auto":
            check_whole("model.draft_head", self.draft_head, null=True)
        shaped = isinstance(self.standin, Mapping) and self.standin.keys() == {"target", "draft"}
        if self.standin is not None and not shaped:
            roles = "{target: yi-34b, draft: yi-6b}"
            raise ValueError(
                f"model.standin={self.standin}: give a shape for each role, as {roles}"
            )

    def path(self, role: str) -> str:
        """Return a role's hub id or folder. Raises `ValueError` if there is no draft."""
        from ouroboros.models.load import model_path

        if not getattr(self, role):
            remedy = "or leave decoders that draft with a model out of decoder=[...]"
            raise ValueError(f"give model.draft=<hub id or folder>, {remedy}")
        return model_path(getattr(self, role))


@dataclass
class Sampling:
    """How tokens are selected. The seed of a completion depends only on the run's `seed`, the
    example and the repeat, so every decoder, a resumed run and a replay draw the same tokens."""

    seed: int = 0
    temperature: float = 0.0  # 0: greedy; above: sampling, with the same noise for all decoders
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # as in transformers; 1: none

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, least=0)
        check_whole("top_k", self.top_k, least=0)
        for name, (low, high, words) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)}: give a number {words}")

    def choose(self, example: str, repeat: int, *, vocab: int) -> TokenSelector:
        """Return the token selector for a repeat of the example; `vocab` is the vocabulary size."""
        from transformers import RepetitionPenaltyLogitsProcessor

        from ouroboros.core.processors import Processed
        from ouroboros.core.select import Sampler, argmax

        choose: TokenSelector = argmax
        if self.temperature:
            cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
            digest = hashlib.sha256(f"{self.seed}\0{example}\0{repeat}".encode()).digest()
            seed = int.from_bytes(digest[:8]) >> 2
            choose = Sampler(temperature=self.temperature, seed=seed, **cuts)  # type: ignore[arg-type]
        if self.repetition_penalty == 1.0:
            return choose
        penalty = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        return Processed(choose, [penalty], vocab=vocab)


@dataclass
class RunConfig(Sampling):
    """All options of a run. `decoder` maps names to decoder configs, as for `make_decoder`."""

    model: PairSpec = MISSING
    task: Any = MISSING  # a `TaskSpec`, or its mapping
    decoder: dict[str, dict[str, Any]] = field(default_factory=dict)
    max_new: int | None = None  # new tokens per prompt; None: the task's default
    repeats: int = 1  # how often each decoder decodes each prompt
    batch_size: int = 1  # prompts that a decoder decodes together, in joint calls
    refill: bool = False  # when a prompt ends, the next one takes its place in the batch
    threads: int | None = None  # CPU threads; None: torch's default
    parallel: str | None = None  # tree: torchrun's processes share the nodes of each tree
    audit: str = "differing"  # audit completions that differ from greedy's | all: controls | none
    results_dir: str | None = None  # None: results/local/<task>-<model>-<time>
    overwrite: bool = False  # replace the run in results_dir
    timing: bool = True  # False: report counts only, because other jobs share the device
    costs: Any = None  # call costs: epyc, flat, a file, a timed folder; None: measured if needed
    published: dict[str, Any] | None = None  # for the report: source, hardware, tokens_per_s
    record_predictions: bool = False  # needs timing=false: record trees and predictions

    @classmethod
    def from_mapping(cls, options: Mapping) -> Self:
        """Return the config for plain values, as in run.json; missing options get their
        defaults."""
        merged = OmegaConf.merge(OmegaConf.structured(cls), options)
        return OmegaConf.to_object(merged)  # type: ignore[return-value]

    def to_mapping(self) -> dict:
        """Return the config as plain values; the inverse of `from_mapping`."""
        return {**asdict(self), "task": self.task.to_mapping()}

    def replaced(self, overrides: Mapping[str, object]) -> Self:
        """Return the config with some options overridden: {"task.path": value}."""
        options = OmegaConf.create(self.to_mapping())
        for name, value in overrides.items():
            OmegaConf.update(options, name, value, merge=False, force_add=True)
        return type(self).from_mapping(OmegaConf.to_container(options))  # type: ignore[arg-type]

    @property
    def sampling(self) -> Sampling:
        """The options of token selection."""
        return Sampling(**{name: getattr(self, name) for name in Sampling.__dataclass_fields__})

    @property
    def needs_draft(self) -> bool:
        """Whether any decoder drafts with a draft model."""
        return any(own.get("draft") is not None for own in self.decoder.values())

    def files(self) -> dict[str, Path]:
        """Return the files, folders and hub ids that the config names, as {option: path}. The
        paths need not exist."""
        roles = [role for role in ("target", "draft") if getattr(self.model, role)]
        found = {f"model.{role}": Path(self.model.path(role)) for role in roles}
        found |= {"costs": Path(self.costs)} if isinstance(self.costs, str) else {}
        for name, own in self.decoder.items():
            known = ("pool", "costs", "weights", "path")
            options = [option for option in known if own.get(option)]
            found |= {f"decoder.{name}.{option}": Path(str(own[option])) for option in options}
        return {**self.task.files(), **found}

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.task, Mapping):
            self.task = TaskSpec.from_mapping(self.task)
        for name in ("max_new", "repeats", "threads", "batch_size"):
            check_whole(name, getattr(self, name), null=name not in ("repeats", "batch_size"))
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join(choice or "null" for choice in choices)
                raise ValueError(f"{name}={getattr(self, name)}: choose one of {known}")
        if self.record_predictions and self.timing:
            raise ValueError("record_predictions=true slows every step: give timing=false as well")
        if self.batch_size > 1 and self.parallel:
            raise ValueError("parallel=tree decodes one sequence at a time: give batch_size=1")
        if self.parallel and "tp_plan" in self.model.options:
            raise ValueError("parallel=tree takes no tp_plan: it spreads a model over all ranks")
