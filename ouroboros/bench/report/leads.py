"""Decoder against decoder: how far Ouroboros is ahead of each other one, paired by prompt.

Every ratio is the other decoder's amount per token over Ouroboros', so that more than 1 means that
Ouroboros is ahead. Only prompts and repeats that both finished count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ouroboros.bench.metrics import metrics
from ouroboros.bench.metrics.intervals import Interval, over_runs, speedup
from ouroboros.bench.metrics.sample import Sample
from ouroboros.costs import CostModel

PARTS = {
    "latency": metrics.whole_part,
    "decode": metrics.decode_part,
    "ttft": metrics.ttft_part,
}
MEASURES = ("latency", "predicted", "cost", "calls")
"""What decoders may be compared by, the best evidence first."""


def leads(
    mine: Sequence[Sample],
    ours: Sequence[Sample],
    priced: CostModel | None,
    *,
    draft_cost: float = metrics.COST_RATIO,
) -> dict[str, Interval | None]:
    """Return Ouroboros' lead over a decoder by each measure, as "<measure>_vs_ouroboros"."""
    calls = partial(metrics.calls_part, cost_ratio=draft_cost)
    found = {name: speedup(mine, ours, part=part) for name, part in PARTS.items()}
    found["calls"] = speedup(mine, ours, part=calls)
    found |= {"cost": None, "predicted": None}
    theirs, own = (priced.predict_all(samples) if priced else [] for samples in (mine, ours))
    if priced and theirs and own:
        found["cost"] = speedup(mine, ours, part=priced.cost)
        found["predicted"] = speedup(theirs, own)
    return {f"{name}_vs_ouroboros": one for name, one in found.items()}


def others(summary: Mapping) -> dict[str, Mapping]:
    """Return the rows of the decoders that Ouroboros was paired with, itself left out."""
    rows = summary["decoders"].items()
    return {n: r for n, r in rows if n != "ouroboros" and r["calls_vs_ouroboros"]}


def best_other(summary: Mapping, measure: str) -> tuple[str, Mapping] | None:
    """Return the decoder, no variant of Ouroboros, that Ouroboros is least ahead of, and the lead;
    None without any. Chosen on the very samples that are shown, which is in that one's favour."""
    rows = {
        name: row[f"{measure}_vs_ouroboros"]
        for name, row in others(summary).items()
        if not name.startswith("ouroboros") and row[f"{measure}_vs_ouroboros"]
    }
    return min(rows.items(), key=lambda pair: pair[1]["value"], default=None)


def mean_lead(found: Sequence[Mapping]) -> Mapping:
    """Return the geometric mean of leads over several runs, with its interval."""
    return vars(over_runs([Interval(**one) for one in found]))


def said(lead: Mapping) -> str:
    """Return a lead as a word: "ahead" or "behind" where the whole interval says so."""
    low, high = lead["low"], lead["high"]
    if low is None or low <= 1 <= high:
        return "not told apart"
    return "ahead" if low > 1 else "behind"
