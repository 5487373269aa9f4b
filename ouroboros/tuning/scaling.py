"""What wider trees are worth, and from how many devices on: the scaling law of lookahead decoding.

Fu et al. (ICML 2024, section 5) find that the tokens of a step grow with the logarithm of its work.
From counts of runs at several widths, and what calls cost, follows what each width would take on
several devices. Invariant: everything said of devices is a prediction, and says by what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN, Sample, steps_of
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.costs import Costs, Surface
from ouroboros.engine.parallel.partition import cut
from ouroboros.tree import TokenTree

CONTEXT = 512  # tokens, of the calls whose cost is taken


@dataclass(frozen=True)
class Width:
    """A decoder at one width, means over steps: `nodes` scored, new `tokens`, tokens `accepted`,
    draft calls, and nodes of one. `parts[devices]` are the nodes of the largest part when each
    step's tree is cut for so many."""

    decoder: str
    nodes: float
    tokens: float
    accepted: float
    draft_calls: float
    draft_nodes: float
    parts: Mapping[int, float]


@dataclass(frozen=True)
class Law:
    """Tokens per step as `at_one` + `per_doubling` x log2(nodes per step), with its `r2`."""

    at_one: float
    per_doubling: float
    r2: float


@dataclass(frozen=True)
class Pays:
    """On so many devices the best of the widths: its nodes and tokens per step, `speed` over the
    best on one device, and over plain decoding."""

    decoder: str
    devices: int
    nodes: float
    tokens: float
    part: float
    speed: float
    speedup: float


def width_of(
    decoder: str,
    samples: Sequence[Sample],
    trees: Iterable[ProposedTree],
    devices: Sequence[int],
) -> Width:
    """Return a decoder's width from its samples and the trees of their steps."""
    steps = steps_of(samples)
    shapes = [TokenTree(tree.tokens, tree.parents) for tree in trees]
    calls = sum(step.draft_calls for step in steps)
    parts = {
        count: float(np.mean([max(map(len, cut(one, [0] * count))) for one in shapes]))
        for count in devices
    }
    return Width(
        decoder,
        nodes=float(np.mean([step.scored for step in steps])),
        tokens=METRICS["tokens_per_target_call"](samples) or 0.0,
        accepted=float(np.mean([step.accepted for step in steps])),
        draft_calls=calls / len(steps),
        draft_nodes=sum(step.draft_scored for step in steps) / calls if calls else 0.0,
        parts=parts,
    )


def law_of(widths: Sequence[Width]) -> Law | None:
    """Return the line through the widths of a decoder, by least squares; None for fewer than three
    of them."""
    if len({width.nodes for width in widths}) < 3:
        return None
    x = np.log2([width.nodes for width in widths])
    y = np.array([width.tokens for width in widths])
    slope, base = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - base - slope * x) ** 2).sum())
    return Law(float(base), float(slope), 1 - rest / spread if spread else 0.0)


def step_ms(width: Width, costs: Costs, devices: int, message_ms: float) -> float:
    """Return what a step would take on so many devices.

    The target's call is of the largest part and of the tokens accepted in the step before, which
    that device may lack; or of the whole tree, where that costs less; with a message. The draft
    runs on every device. Raises `ValueError` beyond what the costs cover.
    """
    one = _ms(costs.target, width.nodes)
    if devices > 1:
        fed = min(width.nodes, width.parts[devices] + width.accepted)
        one = min(one, _ms(costs.target, fed)) + message_ms
    drafting = 0.0
    if width.draft_calls:
        if costs.draft is None:
            raise ValueError("the costs have no draft model: give draft_ms")
        drafting = width.draft_calls * _ms(costs.draft, max(1.0, width.draft_nodes))
    host = costs.host_ms.get(width.decoder, costs.host_ms.get("", 0.0))
    return one + drafting + host


def pays(
    widths: Sequence[Width], costs: Costs, *, devices: Sequence[int], message_ms: float
) -> list[Pays]:
    """Return for each decoder and number of devices its best width. Widths that the costs do not
    cover are left out."""
    found = []
    plain_ms = _ms(costs.target, 1.0) + costs.host_ms.get(PLAIN, costs.host_ms.get("", 0.0))
    for decoder in dict.fromkeys(width.decoder for width in widths):
        own = [w for w in widths if w.decoder == decoder and _covered(w, costs)]
        if not own:
            continue
        rates = {n: _best(own, costs, n, message_ms) for n in sorted({1, *devices})}
        for count in devices:
            width, rate = rates[count]
            part = width.nodes if count == 1 else width.parts[count]
            speed = rate / rates[1][1]
            found.append(
                Pays(decoder, count, width.nodes, width.tokens, part, speed, rate * plain_ms)
            )
    return found


def _best(
    widths: Sequence[Width], costs: Costs, devices: int, message_ms: float
) -> tuple[Width, float]:
    """The width of most tokens per millisecond, and these."""
    rates = [(one, one.tokens / step_ms(one, costs, devices, message_ms)) for one in widths]
    return max(rates, key=lambda pair: pair[1])


def _covered(width: Width, costs: Costs) -> bool:
    try:
        step_ms(width, costs, 1, 0.0)
    except ValueError:
        return False
    return True


def _ms(surface: Surface, nodes: float) -> float:
    return surface.call_ms(nodes, min(CONTEXT, max(surface.ms)))
