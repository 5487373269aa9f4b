"""Predict on how many devices a wider tree pays: the scaling law of lookahead decoding.

    ouroboros bench experiment=scaling_law     (and experiment=scaling_nodes)
    python scripts/trials/scaling.py results/local/scaling_law --costs epyc

Fu et al. (ICML 2024, section 5) find that a step's tokens grow with the logarithm of its nodes.
Runs at several widths (record_trees=true) and costs predict the best width on several devices.
"""

from __future__ import annotations

import argparse
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

CONTEXT = 512  # tokens before the calls whose costs are used


def read_widths(place: Path, devices: Sequence[int]) -> list[dict]:
    """Return means over the steps of each run and decoder, greedy left out.

    `parts` has, by number of devices, the nodes of the largest part of a divided tree.
    """
    widths = []
    for path in run_folders(place):
        run = load(path)
        for name in run.run["decoders"]:
            samples = [s for s in run.samples if s.decoder == name and not s.error]
            trees = [step.tree for sample in samples for step in run.trees.get(sample.key, ())]
            if name == PLAIN:
                continue
            if not trees:
                raise SystemExit(f"{path} has no trees of {name}: run it with record_trees=true")
            steps = [step for sample in samples for step in sample.steps]
            calls = sum(step.draft_calls for step in steps)
            width = {"decoder": name, "nodes": float(np.mean([step.scored for step in steps]))}
            width["tokens"] = METRICS["tokens_per_target_call"](samples) or 0.0
            width["accepted"] = float(np.mean([step.accepted for step in steps]))
            width["draft_calls"] = calls / len(steps)
            width["draft_nodes"] = sum(s.draft_scored for s in steps) / calls if calls else 0.0
            largest = {n: [max(map(len, cut(tree, [0] * n))) for tree in trees] for n in devices}
            width["parts"] = {n: float(np.mean(sizes)) for n, sizes in largest.items()}
            widths.append(width)
    return widths


def law_of(widths: Sequence[Mapping]) -> dict[str, float]:
    """Fit tokens per step = `at_one` + `per_doubling` * log2(nodes); {} for fewer than three."""
    if len({width["nodes"] for width in widths}) < 3:
        return {}
    fit = linregress(np.log2([w["nodes"] for w in widths]), [w["tokens"] for w in widths])
    r2 = float(np.nan_to_num(fit.rvalue**2))
    return {"at_one": float(fit.intercept), "per_doubling": float(fit.slope), "r2": r2}


def best_widths(
    widths: Sequence[Mapping], costs: Costs, *, devices: Sequence[int], message_ms: float
) -> pd.DataFrame:
    """Return the width with the most tokens per millisecond for each decoder and device count.

    On several devices, a step takes a message and a target call. The call scores the largest part
    of the tree and the tokens accepted in the previous step, which that device may lack; or the
    whole tree if that costs less. The draft runs on every device. `speedup` is over greedy.
    Widths that the costs do not cover are left out.
    """

    def call_ms(surface: Surface | None, nodes: float) -> float:
        if surface is None:
            raise ValueError("the costs have no draft model: give draft_ms")
        return surface.call_ms(nodes, min(CONTEXT, max(surface.ms)))

    rows, greedy_ms = [], call_ms(costs.target, 1.0) + costs.host_of(PLAIN)
    for width in widths:
        name, nodes, calls = width["decoder"], width["nodes"], width["draft_calls"]
        try:
            whole, rest = call_ms(costs.target, nodes), costs.host_of(name)
            rest += calls * call_ms(costs.draft, max(1.0, width["draft_nodes"])) if calls else 0.0
        except ValueError:
            continue
        for count in devices:
            part, ms = nodes, whole + rest
            if count > 1:
                part = width["parts"][count]
                shared = call_ms(costs.target, min(nodes, part + width["accepted"]))
                ms = min(whole, shared) + message_ms + rest
            speedup = width["tokens"] * greedy_ms / ms
            rows.append((name, count, nodes, width["tokens"], part, speedup))
    columns = ["decoder", "devices", "nodes", "tokens", "largest part", "speedup"]
    found = pd.DataFrame(rows, columns=columns)
    best = found.groupby(["decoder", "devices"], sort=False).speedup.idxmax().astype(int)
    return found.loc[best].reset_index(drop=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="a folder of runs")
    parser.add_argument("--costs", required=True, help="epyc, flat or a file")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--message-ms", type=float, default=0.05, help="of one exchange")
    options = parser.parse_args()
    widths = read_widths(options.runs, options.devices)
    for name, own in pd.DataFrame(widths).groupby("decoder"):
        print(own.drop(columns="parts").to_markdown(index=False, floatfmt=".2f"))
        print(f"\n{name}: {law_of(own.to_dict('records'))}\n")
    costs, ms = Costs.load(options.costs), options.message_ms
    best = best_widths(widths, costs, devices=options.devices, message_ms=ms)
    print(best.to_markdown(index=False, floatfmt=".2f"))
