"""Choose a model's engine: if trial calls agree with eager ones, fused on a CPU, static on a GPU.

Invariant: every fallback (no graphs, layers not compiled, no attention kernel) is reported with its
reason.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

from transformers import PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.eager import Eager
from ouroboros.engine.frozen import is_hooked
from ouroboros.engine.fused import fuse
from ouroboros.engine.prepack import prepack_linears
from ouroboros.engine.static import Static
from ouroboros.engine.trial import why_different

EngineName = Literal["auto", "eager", "fused", "static", "tuned"]
log = logging.getLogger(__name__)


def select_engine(
    name: EngineName, model: PreTrainedModel, info: ModelInfo, cache: SlotCache
) -> tuple[Eager, str]:
    """Return the engine (see `CachedModel`) and the reason for a fallback ("" without one). A model
    with hooks is called eagerly. Raises `ValueError` for an unknown name, and for "static" on
    several devices."""
    if name not in get_args(EngineName):
        raise ValueError(f"engine {name!r} is not one of {', '.join(get_args(EngineName))}")
    count = len({weight.device for weight in model.parameters()})
    if name == "static" and count > 1:
        raise ValueError(
            f"engine=static needs a model on one device, but this model is on {count}: leave "
            "engine=auto, which calls it eagerly"
        )
    eager = Eager(model, info, cache)
    if is_hooked(model):
        return eager, "its modules have hooks"
    if name == "static":
        return Static(model, info, cache), ""
    if count > 1:
        return eager, f"the model is on {count} devices"
    if info.device.type == "cpu" and name in ("auto", "fused"):
        fused, reason = fuse(model, info, cache, timed=name == "auto")
        if fused is None:
            eager.packed = prepack_linears(model)
        return fused or eager, reason
    if name in ("eager", "fused") or info.device.type != "cuda":
        return eager, f"engine={name} on a {info.device.type} device"
    reasons: list[str] = []
    ways: dict[str, dict[str, bool]] = {"with tuned products": {"products": True}}
    ways = ways if name == "tuned" else {}
    ways |= {"with compiled layers": {}, "at all": {"compiled": False}}
    for how, options in ways.items():
        static = Static(model, info, cache, **options)
        different = why_different(static, eager)
        if different is None:
            return static, "; ".join(reasons)
        reasons.append(f"not captured {how}: {different}")
        log.warning("%s is %s", type(model).__name__, reasons[-1])
    return eager, "; ".join(reasons)
