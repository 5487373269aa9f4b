"""How much wider trees gain, and on how many devices: the scaling law of lookahead decoding.

Fu et al. (ICML 2024, section 5) find that tokens per step grow with the logarithm of the work per
step. Counts of runs at several widths and call costs predict the time of each width on several
devices. Invariant: every figure about devices is a prediction from named costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import linregress

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.costs import Costs, Surface
from ouroboros.engine.parallel.partition import cut

CONTEXT = 512  # tokens of context for call costs


def scaling(
    place: Path, costs: Costs, *, devices: Sequence[int] = (1, 2, 4, 8), message_ms: float = 0.05
) -> dict:
    """Return from how many devices a wider tree pays off, as JSON values.

    `place` is a folder of runs at several widths with recorded trees, or the scaling.json of an
    earlier result. `message_ms` is the time of one exchange between devices. Result: the `widths`
    (`read_widths`), where they were `measured`, fitted `laws` by decoder (`law_of`), and the best
    width per device count, `predicted` (`best_widths`). Raises `ValueError` for runs without trees
    and for device counts that a scaling.json lacks.
    """
    widths, measured = read_widths(place, devices)
    names = dict.fromkeys(width["decoder"] for width in widths)
    laws = {name: law_of([w for w in widths if w["decoder"] == name]) for name in names}
    best = best_widths(widths, costs, devices=devices, message_ms=message_ms).to_dict("records")
    found = {"measured": measured, "widths": widths, "laws": laws, "predicted": best}
    return {**found, "message_ms": message_ms}


def read_widths(place: Path, devices: Sequence[int]) -> tuple[list[dict], str]:
    """Return the widths in a folder's runs (without greedy) or a scaling.json, and where they were
    measured.

    A width has means over steps: `nodes` scored, new `tokens`, tokens `accepted`, `draft_calls`,
    `draft_nodes` per call, and `parts`: by number of devices, the nodes of the largest part of the
    split tree. Raises as `scaling`.
    """
    if place.is_file():
        try:
            known = json.loads(place.read_text(encoding="utf-8"))
            widths = [
                {**row, "parts": {int(n): part for n, part in row["parts"].items()}}
                for row in known["widths"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{place} holds no widths: give a folder of runs") from error
        if lacking := sorted(set(devices) - {n for width in widths for n in width["parts"]}):
            raise ValueError(f"{place} covers no {lacking} devices: give the folder of its runs")
        return widths, known["measured"]
    widths, titles = [], []
    for path in run_folders(place):
        run = load(path)
        titles.append(run.facts.title)
        for name in run.run["decoders"]:
            samples = [s for s in run.samples if s.decoder == name and not s.error]
            trees = [step.tree for sample in samples for step in run.trees.get(sample.key, ())]
            if name == PLAIN:
                continue
            if not trees:
                raise ValueError(f"{path} has no trees of {name}: run it with record_trees=true")
            steps = [step for sample in samples for step in sample.steps]
            calls = sum(step.draft_calls for step in steps)
            widths.append(
                {
                    "decoder": name,
                    "nodes": float(np.mean([step.scored for step in steps])),
                    "tokens": METRICS["tokens_per_target_call"](samples) or 0.0,
                    "accepted": float(np.mean([step.accepted for step in steps])),
                    "draft_calls": calls / len(steps),
                    "draft_nodes": sum(s.draft_scored for s in steps) / calls if calls else 0.0,
                    "parts": {
                        count: float(np.mean([max(map(len, cut(t, [0] * count))) for t in trees]))
                        for count in devices
                    },
                }
            )
    return widths, f"{len(titles)} runs, the first: {titles[0]}."


def law_of(widths: Sequence[Mapping]) -> dict[str, float] | None:
    """Return the least-squares line through a decoder's widths; None for fewer than three.

    Tokens per step = `at_one` + `per_doubling` * log2(nodes per step); `r2` of the fit.
    """
    if len({width["nodes"] for width in widths}) < 3:
        return None
    fit = linregress(np.log2([w["nodes"] for w in widths]), [w["tokens"] for w in widths])
    r2 = float(np.nan_to_num(fit.rvalue**2))
    return {"at_one": float(fit.intercept), "per_doubling": float(fit.slope), "r2": r2}


def best_widths(
    widths: Sequence[Mapping], costs: Costs, *, devices: Sequence[int], message_ms: float
) -> pd.DataFrame:
    """Return the width with the most tokens per millisecond for each decoder and device count.

    On several devices, a step takes a message and a target call. The call scores the largest part
    of the tree and the tokens accepted in the previous step, which that device may lack; or the
    whole tree if that costs less. The draft runs on every device. Columns: decoder, devices, nodes
    and tokens per step, `part` (nodes of the largest part), `speed` relative to the best on one
    device, `speedup` over plain decoding. Widths that the costs do not cover are left out.
    """

    def call_ms(surface: Surface | None, nodes: float) -> float:
        if surface is None:
            raise ValueError("the costs have no draft model: give draft_ms")
        return surface.call_ms(nodes, min(CONTEXT, max(surface.ms)))

    rows = []
    for width in widths:
        name, nodes, tokens = width["decoder"], width["nodes"], width["tokens"]
        try:
            whole = call_ms(costs.target, nodes)
            rest = costs.host_of(name)
            if width["draft_calls"]:
                drafted = call_ms(costs.draft, max(1.0, width["draft_nodes"]))
                rest += width["draft_calls"] * drafted
        except ValueError:
            continue
        rows.append((name, 1, nodes, tokens, nodes, tokens / (whole + rest)))
        for count in sorted({*devices} - {1}):
            part = width["parts"][count]
            shared = call_ms(costs.target, min(nodes, part + width["accepted"]))
            ms = min(whole, shared) + message_ms + rest
            rows.append((name, count, nodes, tokens, part, tokens / ms))
    found = pd.DataFrame(rows, columns=["decoder", "devices", "nodes", "tokens", "part", "rate"])
    best = found.loc[found.groupby(["decoder", "devices"], sort=False).rate.idxmax().astype(int)]
    alone = best[best.devices == 1].set_index("decoder").rate
    best["speed"] = best.rate / best.decoder.map(alone)
    best["speedup"] = best.rate * (call_ms(costs.target, 1.0) + costs.host_of(PLAIN))
    kept = best[best.devices.isin(list(devices))].drop(columns="rate")
    return kept.reset_index(drop=True)
