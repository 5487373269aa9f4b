"""What a draft of each agreement is worth: speedups by group of prompts, and from where it pays.

Every figure is predicted from counted calls and what calls cost; nothing else takes time.
Invariant: decoders share their texts, so all differences between them are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.costs import Costs, Surface

CONTEXT = 512  # tokens, of the calls whose cost is taken
ALL = "all"


@dataclass(frozen=True)
class Worth:
    """The speedup over greedy of a decoder on a group of prompts, under the costs of that name with
    a draft call of `ratio` target calls. `agreement` is its draft's, None where it has none.
    `settings` were chosen on other prompts."""

    group: str
    costs: str
    ratio: float
    decoder: str
    agreement: float | None
    speedup: Interval
    prompts: int
    settings: Mapping[str, object] = field(default_factory=dict)


def with_ratio(costs: Costs, ratio: float) -> Costs:
    """Return the costs of calls alone, at every context those at `CONTEXT`, with the draft's calls
    scaled so that one of a single node costs `ratio` of the target's.

    Raises `ValueError` for costs without a draft.
    """
    if costs.draft is None:
        raise ValueError("the costs have no draft model: give draft_ms")
    target, draft = _flat(costs.target), _flat(costs.draft)
    factor = ratio * target.call_ms(1, CONTEXT) / draft.call_ms(1, CONTEXT)
    return Costs(target, _flat(costs.draft, factor))


def _flat(surface: Surface, factor: float = 1.0) -> Surface:
    sizes = next(iter(surface.ms.values()))
    row = {nodes: factor * surface.call_ms(nodes, CONTEXT) for nodes in sizes}
    return Surface({math.inf: row}, padded=surface.padded)


def pays_from(rows: Iterable[Worth]) -> dict[str, tuple[float | None, bool]]:
    """Return for each decoder with a draft the agreement from which on it is faster than the best
    decoder without one, between the agreements tried by straight lines.

    `rows` are of one group under one set of costs. (None, False): at no agreement that was tried;
    (a, True): already at the lowest one, a.
    """
    rows = list(rows)
    without = max((row.speedup.value for row in rows if row.agreement is None), default=1.0)
    found: dict[str, tuple[float | None, bool]] = {}
    for name in dict.fromkeys(row.decoder for row in rows if row.agreement is not None):
        line = sorted(
            (row.agreement, row.speedup.value - without)
            for row in rows
            if row.decoder == name and row.agreement is not None
        )
        found[name] = _crossing(line)
    return found


def _crossing(line: Sequence[tuple[float, float]]) -> tuple[float | None, bool]:
    """The place from which on a line of points stays at or above 0."""
    if line[-1][1] < 0:
        return None, False
    below = [at for at, (_, gain) in enumerate(line) if gain < 0]
    if not below:
        return line[0][0], True
    (left, low), (right, high) = line[below[-1]], line[below[-1] + 1]
    return left + (right - left) * -low / (high - low), False


def speedup_table(rows: Sequence[Worth]) -> list[dict[str, str]]:
    """Return a line for each decoder and agreement, a column for each group: under one set of
    costs."""
    lines: dict[tuple[str, float | None], dict[str, str]] = {}
    for row in rows:
        key = row.decoder, row.agreement
        agreement = "-" if row.agreement is None else f"{row.agreement:g}"
        line = lines.setdefault(key, {"decoder": row.decoder, "agreement": agreement})
        line[row.group] = as_text(row.speedup)
    return list(lines.values())


def pays_table(rows: Sequence[Worth]) -> list[dict[str, str]]:
    """Return a line for each set of costs and decoder with a draft: from which agreement on it is
    faster than the best without, by group."""
    lines: dict[tuple[str, float, str], dict[str, str]] = {}
    for costs, ratio, group in dict.fromkeys((r.costs, r.ratio, r.group) for r in rows):
        own = [r for r in rows if (r.costs, r.ratio, r.group) == (costs, ratio, group)]
        for name, (agreement, lowest) in pays_from(own).items():
            start = {"costs": costs, "draft call": f"{ratio:g}", "decoder": name}
            line = lines.setdefault((costs, ratio, name), start)
            tried = max(row.agreement for row in own if row.agreement is not None)
            known = f"above {tried:g}" if agreement is None else f"{agreement:.2f}"
            line[group] = f"at most {known}" if lowest else known
    return list(lines.values())


def as_text(one: Interval) -> str:
    """Return a speedup with its interval."""
    spread = "" if one.low is None else f" [{one.low:.2f}, {one.high:.2f}]"
    return f"{one.value:.2f}{spread}"
