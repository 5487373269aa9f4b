"""Load the models of a run: any pair of Hugging Face causal LMs, plain or as stand-ins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel

from ouroboros.bench.run.config import PairSpec
from ouroboros.core.instantiate import instantiate
from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.engine.head import listed_ids
from ouroboros.engine.loading import check_folder, check_round_trip, of_tokenizer, why_not_loaded
from ouroboros.engine.model import CachedModel
from ouroboros.engine.prepack import prepack_linears
from ouroboros.engine.quantised import quantise
from ouroboros.models import standin, vocab
from ouroboros.models.load import SHIPPED


@dataclass(frozen=True)
class Pair:
    """The loaded models; `draft` is None if no decoder needs it."""

    target: CachedModel
    draft: CachedModel | None

    @property
    def models(self) -> list[CachedModel]:
        """The target and, if there is one, the draft."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_pair(
    spec: PairSpec, *, with_draft: bool, engines: Mapping[str, str] | None = None
) -> Pair:
    """Load the target and, with `with_draft`, the draft model. `engines` has the engines of the
    run to resume, by role. Raises `ValueError` if a model cannot be loaded, or if the
    vocabularies do not match."""
    roles = ("target", "draft")[: 1 + with_draft]
    for role in roles:
        check_folder(spec.path(role))
    models = {role: load_model(spec, role, (engines or {}).get(role)) for role in roles}
    pair = Pair(models["target"], models.get("draft"))
    if pair.draft is not None:
        vocab.check_pair(pair.target, pair.draft)
    return pair


def load_model(spec: PairSpec, role: str, engine: str | None = None) -> CachedModel:
    """Load the model of a role, "target" or "draft"; `engine` replaces engine=auto. Raises
    `ValueError` if loading fails."""
    options = {
        key: instantiate(value, f"model.{role}_options.{key}")
        if isinstance(value, Mapping) and "_target_" in value
        else value
        for key, value in {**spec.options, **getattr(spec, f"{role}_options")}.items()
    }
    placed = {"device_map", "tp_plan"} & options.keys()
    if placed and (spec.standin or spec.device):
        other = "standin" if spec.standin else "device"
        remedy = f"leave it out, or give model.{other}=null"
        raise ValueError(f"model.options.{min(placed)} has no effect with model.{other}: {remedy}")
    source, device, gpus = spec.path(role), device_of(spec), torch.cuda.device_count()
    check_folder(source)
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"model.device={device}: give cpu, cuda or cuda:<number>") from error
    if place.type == "cuda" and (place.index or 0) >= gpus:
        raise ValueError(f"model.device={device}: torch sees {gpus} GPUs here; give another device")
    dtype = dtype_of(spec)
    chosen = engine if spec.engine == "auto" and engine in ("eager", "fused") else spec.engine
    how: dict = {"engine": chosen, "max_len": spec.max_len}
    if role == "draft":
        how["draft_head"] = listed_ids(source, spec.draft_head, options)  # type: ignore[arg-type]
    if spec.standin:
        quantization = options.pop("quantization_config", None)
        core = CachedModel.from_pretrained(source, dtype=torch.float32, engine="eager", **options)
        shape = standin.shape(spec.standin[role])
        model: PreTrainedModel = standin.embed(core.model, shape, device=device, dtype=dtype)
        if quantization is not None:
            model = quantise(model, quantization)
        made = CachedModel(model, tokenizer=core.tokenizer, **how)
    else:  # with a device_map or tp_plan, transformers places the model
        on = None if placed else device
        made = CachedModel.from_pretrained(source, dtype=dtype, device=on, **how, **options)
    if chosen != spec.engine and chosen == "eager":
        made.engine.packed = prepack_linears(made.model)
    if role == "draft":
        made.prefill_limit = spec.draft_context
    return made


def device_of(spec: PairSpec) -> str:
    """Return the models' device: by default a GPU if there is one."""
    return spec.device or ("cuda" if torch.cuda.is_available() else "cpu")


def dtype_of(spec: PairSpec) -> torch.dtype:
    """Return the models' dtype. "auto" is bfloat16 if the GPU, or the CPU kernels, have it, else
    float16 on a GPU and float32 on a CPU. Raises `ValueError` for an unknown dtype."""
    if spec.dtype == "auto" and device_of(spec).startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if spec.dtype == "auto":
        return torch.bfloat16 if can_multiply(bfloat16=True) else torch.float32
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"model.dtype {spec.dtype!r} is unknown: use auto, bfloat16, float16 or float32"
        )
    return dtype


def load_tokenizer(spec: PairSpec):
    """Load the target's tokenizer, not its weights. Raises `ValueError` if that fails."""
    source = spec.path("target")
    check_folder(source)
    try:
        options = of_tokenizer({**spec.options, **spec.target_options})
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:
        reason = why_not_loaded(str(spec.target), error)
        raise ValueError(f"cannot load the tokenizer of {spec.target!r}: {reason}") from error
    check_round_trip(tokenizer, str(spec.target))
    return tokenizer


def model_names(model: Mapping) -> str:
    """Return the names of a run's models, from `model` in its run.json; a draft that was not loaded
    is not named.

    >>> model_names({"target": "01-ai/Yi-34B", "draft": "01-ai/Yi-6B"})
    'Yi-34B + Yi-6B'
    """
    roles = model.get("engines") or ("target", "draft")
    names = [str(model[role]) for role in roles if model.get(role)]
    if all(name.startswith(SHIPPED) for name in names):
        return str(model["name"])
    return " + ".join(Path(name).name for name in names)
