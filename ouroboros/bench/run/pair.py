"""The models of a run: any pair of Hugging Face causal LMs, as they are or inside larger shapes."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import torch
from transformers import AutoTokenizer, PreTrainedModel

from ouroboros import standin, vocab
from ouroboros.engine.loading import check_round_trip, why_not_loaded
from ouroboros.engine.model import CachedModel, EngineName
from ouroboros.engine.quantised import quantise
from ouroboros.instantiate import instantiate

PACKAGE = Path(standin.__file__).parent
PLACED = ("device_map", "tp_plan")  # transformers itself puts such models on a device


@dataclass(frozen=True)
class PairSpec:
    """The models of a run: what `load_pair` loads.

    `target` and `draft` are hub ids or folders, or "reference/target" and "reference/draft", the
    shipped pair. `dtype` "auto" is bfloat16 where the hardware multiplies it. `options` (for both),
    `target_options` and `draft_options` go to `from_pretrained`, values with a `_target_`
    instantiated. `standin` names a shape for each role: a Llama pair then runs inside larger models
    of these shapes. `exact` has the target's calls exact (see `CachedModel`). The draft reads the
    last `draft_context` tokens of a prompt (None: all). `draft_cost` is the cost of a draft call in
    target calls.
    """

    name: str
    target: str | None
    draft: str | None = None
    dtype: str = "auto"
    device: str | None = None
    max_len: int | None = None
    engine: EngineName = "auto"
    exact: bool = False
    standin: Mapping[str, str] | None = None
    options: Mapping = field(default_factory=dict)
    target_options: Mapping = field(default_factory=dict)
    draft_options: Mapping = field(default_factory=dict)
    draft_context: int | None = None
    draft_cost: float | None = None

    def __post_init__(self) -> None:
        if self.draft_context is not None and self.draft_context < 1:
            raise ValueError(
                f"model.draft_context={self.draft_context}: give 1 or more tokens, or null for all"
            )
        if self.engine not in get_args(EngineName):
            choices = ", ".join(get_args(EngineName))
            raise ValueError(f"model.engine={self.engine}: choose from {choices}")
        try:
            torch.device(self.device or "cpu")
        except RuntimeError as error:
            known = "give cpu, cuda or cuda:<number>"
            raise ValueError(f"model.device={self.device}: {known}") from error

    @classmethod
    def from_mapping(cls, options: Mapping) -> PairSpec:
        """Return the spec of a config. Raises `ValueError` for unknown options or wrong types."""
        return instantiate({**options, "_target_": f"{__name__}.PairSpec"}, "model")

    def files(self) -> dict[str, Path]:
        """Return the models' folders by option, whether they exist or are hub ids."""
        named = {"model.target": self.target, "model.draft": self.draft}
        return {option: Path(model_path(name)) for option, name in named.items() if name}


@dataclass(frozen=True)
class Pair:
    """The loaded models; `draft` is None where no decoder needs it."""

    target: CachedModel
    draft: CachedModel | None

    @property
    def models(self) -> list[CachedModel]:
        """Both models, or the only one."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_pair(spec: PairSpec, *, with_draft: bool) -> Pair:
    """Load the models. Raises `ValueError`, in one line, for what cannot be loaded or paired."""
    if not spec.target:
        raise ValueError("this run needs a model: give model.target=<hub id or folder>")
    if with_draft and not spec.draft:
        raise ValueError(
            "a decoder of this run drafts with a small model: give model.draft=<hub id or folder>, "
            "or leave it out of decoder=[...]"
        )
    target = _load(spec, spec.target, "target")
    if not with_draft:
        return Pair(target, None)
    draft = load_draft(spec)
    vocab.check_pair(target, draft)
    return Pair(target, draft)


def load_draft(spec: PairSpec) -> CachedModel:
    """Load the draft alone, for a replay. Raises `ValueError` where the spec names none."""
    if not spec.draft:
        raise ValueError("a decoder of this replay drafts with a model: give model.draft=<id>")
    draft = _load(spec, spec.draft, "draft")
    draft.prefill_limit = spec.draft_context
    return draft


def load_tokenizer(spec: PairSpec):
    """Load the target's tokenizer without its weights."""
    if not spec.target:
        raise ValueError("give model.target=<hub id or folder>: its tokenizer is needed")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path(spec.target))
    except Exception as error:
        reason = why_not_loaded(spec.target, error)
        raise ValueError(f"cannot load the tokenizer of {spec.target!r}: {reason}") from error
    check_round_trip(tokenizer, spec.target)
    return tokenizer


def model_path(name: str) -> str:
    """Return the hub id or folder that a model's name stands for."""
    return str(PACKAGE / name) if name.startswith("reference/") else name


def _load(spec: PairSpec, name: str, role: str) -> CachedModel:
    options = {
        key: instantiate(value, f"model.{role}_options.{key}")
        if isinstance(value, Mapping) and "_target_" in value
        else value
        for key, value in {**spec.options, **getattr(spec, f"{role}_options")}.items()
    }
    device = spec.device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(device)
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(
            f"model.device={device}: torch sees {count} GPUs here; give another device"
        )
    dtype = fast_dtype(device) if spec.dtype == "auto" else getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"model.dtype {spec.dtype!r} is unknown: use auto, bfloat16, float16 or float32"
        )
    source = model_path(name)
    how: dict = {"engine": spec.engine, "exact": spec.exact and role == "target"}
    if not spec.standin:
        on = None if any(key in options for key in PLACED) else device
        return CachedModel.from_pretrained(
            source, dtype=dtype, device=on, max_len=spec.max_len, **how, **options
        )
    quantization = options.pop("quantization_config", None)
    core = CachedModel.from_pretrained(source, dtype=torch.float32, **options)
    shape = standin.shape(spec.standin[role])
    model: PreTrainedModel = standin.embed(core.model, shape, device=device, dtype=dtype)
    if quantization is not None:
        model = quantise(model, quantization)
    own = CachedModel(model, tokenizer=core.tokenizer, max_len=spec.max_len, **how)
    if not own.exact:
        own.prepack()
    return own


def fast_dtype(device: str) -> torch.dtype:
    """Return bfloat16 where the device multiplies it (a GPU, AMX, AVX512-BF16), else float32."""
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    fast = {"amx_bf16", "avx512_bf16", "bf16"} & cpu()[1]
    return torch.bfloat16 if fast else torch.float32


def cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's model name and feature flags (none where the system does not say)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", platform.machine()), frozenset(flags.split())
