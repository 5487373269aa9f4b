"""A short look at what calls of a pair cost here and now, for drafters to go by.

Invariant: a run must repeat, so it probes once and records what it found; a resumed run takes what
is recorded (`ouroboros.bench.run.folder`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ouroboros.costs.calls import measure
from ouroboros.costs.surface import Costs, Surface
from ouroboros.engine.model import CachedModel
from ouroboros.engine.static import NODES, Static

SIZES = (1, 2, 3, 4, 6, 8, 12, 24, 64, 96)  # nodes; between them costs are interpolated
ONE_CONTEXT = 1024  # up to here a call's cost hardly depends on the context
ROUNDS = 5
LIMIT_S = 4.0


def probe(
    target: CachedModel,
    draft: CachedModel | None = None,
    *,
    context: int = ONE_CONTEXT,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Return the costs of both models' calls of up to 96 nodes and on up to `context` tokens, as
    far as the models reach: medians of up to five rounds, alternated, in a few seconds; of one or
    two rounds where calls are slow.

    A tree never costs more than a larger one: others on the machine only slow a call down. Where an
    engine pads calls, its own sizes are timed. The last tokens of a model's context, beside which
    no tree of 96 nodes has room, count as those before them. The models' caches are left empty.
    """
    models = [model for model in (target, draft) if model is not None]
    pads = [isinstance(model.engine, Static) for model in models]
    reach = min(model.max_len for model in models)
    sizes = [size for size in (NODES if any(pads) else SIZES) if size <= min(SIZES[-1], reach)]
    longest = max(1, min(context, reach - sizes[-1]))
    found = measure(
        models,
        nodes=sizes,
        contexts=[longest] if longest <= ONE_CONTEXT else [longest // 4, longest],
        visits=ROUNDS,
        repeats=1,
        limit_s=LIMIT_S,
        clock=clock,
    )
    held = {longest: max(longest, min(context, reach))}
    surfaces = [rising(own, padded=pad, held=held) for own, pad in zip(found, pads, strict=True)]
    return replace(Costs.of_pair(surfaces), about={"measured": "by a probe at load"})


def rising(surface: Surface, *, padded: bool, held: Mapping[int, int]) -> Surface:
    """Return the surface with what each tree costs at most: the least of its own and all larger
    ones' milliseconds. `held`: up to which context what was measured at one holds."""
    rows = {
        held.get(int(context), context): {
            size: min(ms for n, ms in row.items() if n >= size) for size in row
        }
        for context, row in surface.ms.items()
    }
    spread = {held.get(int(context), context): row for context, row in surface.spread_ms.items()}
    return replace(surface, ms=rows, padded=padded, spread_ms=spread)
