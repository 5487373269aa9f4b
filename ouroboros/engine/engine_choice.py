"""Choose a model's engine: on a GPU static if its trial calls agree with eager calls, else eager.

Invariant: every fallback (no graphs, layers not compiled, no attention kernel) is reported with its
reason.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

from transformers import PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.eager import Eager
from ouroboros.engine.static import Static
from ouroboros.engine.trial import why_different

EngineName = Literal["auto", "eager", "fused", "static", "tuned"]
log = logging.getLogger(__name__)


def select_engine(
    name: EngineName, model: PreTrainedModel, info: ModelInfo, cache: SlotCache
) -> tuple[Eager, str]:
    """Return the engine (see `CachedModel`) and the reason for a fallback ("" without one).
    Raises `ValueError` for an unknown name, and for "static" on several devices."""
    if name not in get_args(EngineName):
        raise ValueError(f"engine {name!r} is not one of {', '.join(get_args(EngineName))}")
    count = len({weight.device for weight in model.parameters()})
    if name == "static" and count > 1:
        raise ValueError(
            f"engine=static needs a model on one device, but this model is on {count}: leave "
            "engine=auto, which calls it eagerly"
        )
    if name == "static":
        return Static(model, info, cache), ""
    eager = Eager(model, info, cache)
    if count > 1 or name in ("eager", "fused") or info.device.type != "cuda":
        where = f"engine={name} on a {info.device.type} device"
        return eager, where if count == 1 else f"the model is on {count} devices"
    reasons: list[str] = []
    ways: dict[str, dict[str, bool]] = {"with tuned products": {"products": True}}
    ways = ways if name == "tuned" else {}
    ways |= {"with compiled layers": {}, "at all": {"compiled": False}}
    for how, options in ways.items():
        static = Static(model, info, cache, **options)
        reason = why_different(static, eager)
        if reason is None:
            return static, "; ".join(reasons)
        reasons.append(f"not captured {how}: {reason}")
        log.warning("%s is %s", type(model).__name__, reasons[-1])
    return eager, "; ".join(reasons)
