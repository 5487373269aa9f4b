"""Making the compiled part ready before it is needed, never inside a measured step."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np

from ouroboros.drafters.draft_tree import learn, step
from ouroboros.drafters.draft_tree.compiled import COMPILED, WHY_NOT
from ouroboros.drafters.draft_tree.growth import Growth, Shape
from ouroboros.drafters.draft_tree.weights import Weights

log = logging.getLogger(__name__)


@cache
def warm_up_jit() -> None:
    """Compile, or load what was compiled, before any step; say so before it where it takes time,
    or where nothing can be compiled. Once: later calls do nothing."""
    if not COMPILED:
        log.warning("growing trees in plain Python, some milliseconds a step: %s", WHY_NOT)
        return
    if not is_compiled():
        log.warning("compiling the drafter for this machine, once; it takes some 15 s")
    grown = Growth(Weights.load(), Shape(ask_limit=1))
    grown.set_costs([1.0], [0.0])
    for text in ([1, 2, 1, 2, 1], [3]):
        grown.start()
        if grown.begin(text, 4, 4):
            grown.asked()
            grown.scored(np.array([[5, 6]]), np.array([[1.0, 0.0]]), np.array([[0.7, 0.3]]))
        made = grown.proposal()
        grown.read_of([0])
        grown.learn([2] * len(made.tokens), [0])


def is_compiled() -> bool:
    """Say whether numba's cache holds the parts of a step, of this code and for this processor."""
    parts: tuple[Any, ...] = (step.begin, step.scored, step.propose, step.read_of, learn.learn)
    return all(_is_kept(part.dispatcher) for part in parts)


def _is_kept(dispatcher) -> bool:
    processor = dispatcher.targetctx.codegen().magic_tuple()
    kept = dispatcher._cache._cache_file._load_index()  # empty where the code has changed
    return any(key[1] == processor for key in kept)
