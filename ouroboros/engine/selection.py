"""Which engine serves a model: fixed shapes where a trial shows that they answer as plain calls."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.engine.cache import SlotCache
from ouroboros.engine.eager import Eager, Engine
from ouroboros.engine.model_info import ModelInfo, tolerance
from ouroboros.engine.static import Static
from ouroboros.tree import TokenTree

EngineName = Literal["auto", "eager", "static"]
TRIED = (1, 8, 24, 64)  # nodes of the trial calls: kernels differ from size to size
log = logging.getLogger(__name__)


def select(
    name: EngineName, model: PreTrainedModel, facts: ModelInfo, cache: SlotCache
) -> tuple[Engine, str]:
    """Return the engine (see `CachedModel`), and why it is none that captures and compiles, where
    one was tried; else "". Raises `ValueError` for a name that is none, and for fixed shapes on
    several devices."""
    if name not in ("auto", "eager", "static"):
        raise ValueError(f"engine {name!r} is not one of auto, eager, static")
    devices = {weight.device for weight in model.parameters()}
    if name == "static":
        if len(devices) > 1:
            raise ValueError(
                f"engine=static needs a model on one device, this one lies on {len(devices)}: "
                "leave engine=auto, which calls it as it is"
            )
        return Static(model, facts, cache), ""
    eager = Eager(model, facts, cache)
    if len(devices) > 1:
        return eager, f"it lies on {len(devices)} devices"
    if name == "eager" or facts.device.type != "cuda":
        return eager, f"engine={name} on a {facts.device.type} device"
    why: list[str] = []
    for compiled in (True, False):
        static = Static(model, facts, cache, compiled=compiled)
        reason = differs(static, eager)
        if reason is None:
            return static, "; ".join(why)
        how = "with compiled layers" if compiled else "at all"
        why.append(f"not captured {how}: {reason}")
        log.warning("%s is %s", type(model).__name__, why[-1])
    return eager, "; ".join(why)


def differs(engine: Static, reference: Eager) -> str | None:
    """Return why an engine's calls are not those of the reference; None where they are.

    Two trials of each size, so that a graph which replays what it was captured with is found out.
    Both caches' first slots are overwritten.
    """
    facts, cache = reference.facts, reference.cache
    trials = [
        ([first % facts.vocab_size] * (nodes > 1), _comb(max(1, nodes - 1), first, facts))
        for nodes in TRIED
        if nodes < facts.max_len
        for first in (1, 4)
    ]
    try:
        for missing, tree in trials:
            with torch.inference_mode():
                found = engine.run(0, missing, tree).double()
                wanted = reference.run(0, missing, tree).double()
            error = ((found - wanted).abs().max() / wanted.std().clamp_min(1e-6)).item()
            if not error < tolerance(facts.dtype):
                return f"its logits are off by {error:.2g} standard deviations"
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        cache.set_length(0)
        engine.forwards = reference.forwards = 0
    return None


def _comb(nodes: int, first: int, facts: ModelInfo) -> TokenTree:
    """Return a tree of so many nodes in which every second one has two children."""
    tokens = tuple((first + node) % facts.vocab_size for node in range(nodes))
    return TokenTree(tokens, (-1, *((node - 1) // 2 * 2 for node in range(1, nodes))))
