"""Choose a model's engine: on a GPU static if its trial calls agree with eager calls, else eager.

Invariant: every fallback (no graphs, layers not compiled, no attention kernel) is reported with its
reason.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

import torch
from transformers import PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache, logit_error, tolerance
from ouroboros.engine.eager import Eager
from ouroboros.engine.static import Static
from ouroboros.tree import TokenTree

EngineName = Literal["auto", "eager", "fused", "static", "tuned"]
TRIAL_NODES = (1, 8, 24, 64)  # kernels differ from size to size
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


def why_different(engine: Eager, reference: Eager) -> str | None:
    """Compare an engine's logits with those of the reference; return how they differ, or the error
    of a failed call; None if they agree.

    Each size is tried twice with different inputs, to detect a graph that replays the inputs of its
    capture. Overwrites the first slots of both caches.
    """
    info = reference.info
    layers = engine.compiled if isinstance(engine, Static) else None
    if layers and layers.how["backend"] and not layers.compiled:
        return "its decoder layers were not found"
    try:
        for nodes in (size for size in TRIAL_NODES if size < info.max_len):
            for first in (1, 4):
                missing = [first % info.vocab_size] * (nodes > 1)
                count = max(1, nodes - 1)  # every second node has two children
                tokens = tuple((first + node) % info.vocab_size for node in range(count))
                tree = TokenTree(tokens, (-1, *((node - 1) // 2 * 2 for node in range(1, count))))
                with torch.inference_mode():
                    logits = engine.run(0, missing, tree).double()
                    expected = reference.run(0, missing, tree).double()
                error = logit_error(logits, expected)
                if not error < tolerance(info.dtype):
                    return f"its logits are off by {error:.2g} standard deviations"
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        reference.cache.set_length(0)
        engine.forwards = reference.forwards = 0
    return None
