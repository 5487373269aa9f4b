"""Making the compiled part ready before it is needed, never inside a measured step."""

from __future__ import annotations

import logging
import time
from functools import cache

import numpy as np

from ouroboros.drafters.growth import step
from ouroboros.drafters.growth.compiled import COMPILED, WHY_NOT
from ouroboros.drafters.growth.growth import Growth, Shape
from ouroboros.drafters.growth.weights import Weights

log = logging.getLogger(__name__)


@cache
def make_ready() -> None:
    """Compile, or load what was compiled, before any step; say so once where it takes time, or
    where nothing can be compiled."""
    if not COMPILED:
        log.warning("growing trees in plain Python, some milliseconds a step: %s", WHY_NOT)
        return
    started = time.perf_counter()
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
    if step.begin.stats.cache_misses:  # type: ignore[attr-defined]
        taken = time.perf_counter() - started
        log.warning("compiled the drafter for this machine in %.0f s, once", taken)
