"""What wider trees are worth, and from how many devices on: the scaling law of lookahead decoding.

Fu et al. (ICML 2024, section 5) find that the tokens of a step grow with the logarithm of its work.
Counts of runs at several widths and the costs of calls predict what each width would take on
several devices. Invariant: every figure about devices is a prediction from named costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN, Sample, steps_of
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.costs import Costs, Surface
from ouroboros.engine.parallel.partition import cut
from ouroboros.tree import TokenTree

CONTEXT = 512  # tokens, of the calls whose costs are taken
GAIN = 1.02  # a wider tree pays if its speed over one device is above this


@dataclass(frozen=True)
class Width:
    """A decoder at one width, means over steps: `nodes` scored, new `tokens`, tokens `accepted`,
    draft calls, and nodes of one. `parts[devices]`: nodes of the largest part when each step's tree
    is cut for so many devices."""

    decoder: str
    nodes: float
    tokens: float
    accepted: float
    draft_calls: float
    draft_nodes: float
    parts: Mapping[int, float]


@dataclass(frozen=True)
class Law:
    """Tokens per step = `at_one` + `per_doubling` * log2(nodes per step); `r2` of the fit."""

    at_one: float
    per_doubling: float
    r2: float


@dataclass(frozen=True)
class Scaling:
    """The widths measured (`measured` says on what), each decoder's law (None: too few widths), and
    the best width on each number of devices (see `best_widths`)."""

    measured: str
    widths: Sequence[Width]
    laws: Mapping[str, Law | None]
    best: pd.DataFrame

    def to_dict(self) -> dict:
        """Return JSON values; `read_widths` reads the widths of them."""
        return {
            "measured": self.measured,
            "widths": [asdict(width) for width in self.widths],
            "laws": {name: law and asdict(law) for name, law in self.laws.items()},
            "predicted": self.best.to_dict("records"),
        }

    def width_table(self) -> pd.DataFrame:
        """Return one row per width: nodes and tokens per step, nodes of the largest part."""
        rows = [
            {"decoder": one.decoder, "nodes/step": one.nodes, "tokens/step": one.tokens}
            | {f"part of {n}": part for n, part in one.parts.items() if n > 1}
            for one in sorted(self.widths, key=lambda one: (one.decoder, one.nodes))
        ]
        return pd.DataFrame(rows)

    def conclusion(self, decoder: str) -> str:
        """Return in one line from how many devices on a wider tree pays."""
        own = self.best[self.best.decoder == decoder]
        alone = own[own.devices == 1]
        if alone.empty:
            return f"{decoder}: the costs cover none of its widths, or devices= lacks 1"
        nodes = alone.nodes.iloc[0]
        wider = own[(own.nodes > nodes) & (own.speed > GAIN)]
        if wider.empty:
            return f"{decoder}: no wider tree pays on up to {own.devices.max()} devices"
        first = wider.loc[wider.devices.idxmin()]
        return (
            f"{decoder}: from {first.devices} devices on a wider tree pays ({first.nodes:.0f} "
            f"nodes a step instead of {nodes:.0f}): {first.speed:.2f}x over one device"
        )


def scaling(
    place: Path, costs: Costs, *, devices: Sequence[int] = (1, 2, 4, 8), message_ms: float = 0.05
) -> Scaling:
    """Return from how many devices on a wider tree pays.

    `place` is a folder of runs at several widths with recorded trees, or the scaling.json of an
    earlier answer. `message_ms` is the time of one exchange between devices. Raises `ValueError`
    for runs without trees and for devices that a scaling.json lacks.
    """
    widths, measured = read_widths(place, devices)
    names = dict.fromkeys(width.decoder for width in widths)
    laws = {name: law_of([w for w in widths if w.decoder == name]) for name in names}
    best = best_widths(widths, costs, devices=devices, message_ms=message_ms)
    return Scaling(measured, widths, laws, best)


def read_widths(place: Path, devices: Sequence[int]) -> tuple[list[Width], str]:
    """Return the widths of a folder's runs (greedy left out) or of a scaling.json, and on what they
    were measured. Raises as `scaling`."""
    if place.is_file():
        try:
            known = json.loads(place.read_text(encoding="utf-8"))
            widths = [
                Width(**{**row, "parts": {int(n): p for n, p in row["parts"].items()}})
                for row in known["widths"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{place} holds no widths: give a folder of runs") from error
        lacking = sorted(set(devices) - {n for width in widths for n in width.parts})
        if lacking:
            raise ValueError(
                f"{place} says nothing of {lacking} devices: give the folder of its runs"
            )
        return widths, known["measured"]
    widths, titles = [], []
    for path in run_folders(place):
        run = load(path)
        titles.append(RunFacts.of(run.run, run.samples).title)
        for name in run.run["decoders"]:
            samples = [s for s in run.samples if s.decoder == name and not s.error]
            trees = [tree for s in samples for tree in run.trees.get(s.key, ())]
            if name != PLAIN and not trees:
                raise ValueError(f"{path} has no trees of {name}: run it with record_trees=true")
            if name != PLAIN:
                widths.append(width_of(name, samples, trees, devices))
    return widths, f"{len(titles)} runs, the first: {titles[0]}."


def width_of(
    decoder: str, samples: Sequence[Sample], trees: Iterable[ProposedTree], devices: Sequence[int]
) -> Width:
    """Return a decoder's width from its samples and the trees of their steps."""
    steps = steps_of(samples)
    shapes = [TokenTree(tree.tokens, tree.parents) for tree in trees]
    calls = sum(step.draft_calls for step in steps)
    return Width(
        decoder,
        nodes=float(np.mean([step.scored for step in steps])),
        tokens=METRICS["tokens_per_target_call"](samples) or 0.0,
        accepted=float(np.mean([step.accepted for step in steps])),
        draft_calls=calls / len(steps),
        draft_nodes=sum(step.draft_scored for step in steps) / calls if calls else 0.0,
        parts={
            count: float(np.mean([max(map(len, cut(one, [0] * count))) for one in shapes]))
            for count in devices
        },
    )


def law_of(widths: Sequence[Width]) -> Law | None:
    """Return the least-squares line through a decoder's widths; None for fewer than three."""
    if len({width.nodes for width in widths}) < 3:
        return None
    x = np.log2([width.nodes for width in widths])
    y = np.array([width.tokens for width in widths])
    slope, base = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - base - slope * x) ** 2).sum())
    return Law(float(base), float(slope), 1 - rest / spread if spread else 0.0)


def step_ms(width: Width, costs: Costs, devices: int, message_ms: float) -> float:
    """Return the predicted milliseconds of a step on so many devices.

    The target's call is of the largest part and of the tokens accepted in the step before, which
    that device may lack, plus a message; or of the whole tree where that costs less. The draft runs
    on every device. Raises `ValueError` for calls that the costs do not cover.
    """
    ms = _ms(costs.target, width.nodes)
    if devices > 1:
        fed = min(width.nodes, width.parts[devices] + width.accepted)
        ms = min(ms, _ms(costs.target, fed)) + message_ms
    if width.draft_calls:
        if costs.draft is None:
            raise ValueError("the costs have no draft model: give draft_ms")
        ms += width.draft_calls * _ms(costs.draft, max(1.0, width.draft_nodes))
    return ms + costs.host_ms.get(width.decoder, costs.host_ms.get("", 0.0))


def best_widths(
    widths: Sequence[Width], costs: Costs, *, devices: Sequence[int], message_ms: float
) -> pd.DataFrame:
    """Return the width of most tokens per millisecond for each decoder and number of devices.

    Columns: decoder, devices, nodes and tokens per step, `part` (nodes of the largest part),
    `speed` over the best on one device, `speedup` over plain decoding. Widths that the costs do not
    cover are left out.
    """
    rows = []
    plain_ms = _ms(costs.target, 1.0) + costs.host_ms.get(PLAIN, costs.host_ms.get("", 0.0))
    for decoder in dict.fromkeys(width.decoder for width in widths):
        rates: dict[int, tuple[float, Width]] = {}
        for width in (one for one in widths if one.decoder == decoder):
            for count in {1, *devices}:
                try:
                    rate = width.tokens / step_ms(width, costs, count, message_ms)
                except ValueError:
                    break
                if count not in rates or rate > rates[count][0]:
                    rates[count] = rate, width
        for count in devices if rates else ():
            rate, width = rates[count]
            rows.append(
                {
                    "decoder": decoder,
                    "devices": count,
                    "nodes": width.nodes,
                    "tokens": width.tokens,
                    "part": width.nodes if count == 1 else width.parts[count],
                    "speed": rate / rates[1][0],
                    "speedup": rate * plain_ms,
                }
            )
    columns = ["decoder", "devices", "nodes", "tokens", "part", "speed", "speedup"]
    return pd.DataFrame(rows, columns=columns)


def _ms(surface: Surface, nodes: float) -> float:
    return surface.call_ms(nodes, min(CONTEXT, max(surface.ms)))
