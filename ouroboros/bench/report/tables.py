"""Tables of summaries: one frame of cells per question.

A cell is text as a reader sees it ("3.04x [2.15, 3.86]", "-" where nothing is known); the same
numbers in full, one row per run and decoder, are `compare.numbers_frame`'s. A measure that no
decoder has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ouroboros.bench.metrics import metrics
from ouroboros.bench.report.cells import (
    as_text,
    interval,
    number,
    percent,
    ratio,
    within,
)
from ouroboros.bench.report.leads import MEASURES, others, said
from ouroboros.bench.report.published import published_caption, published_frame
from ouroboros.bench.report.summary import cost_text

WORDS = {
    "latency": "tokens/s",
    "predicted": "prediction",
    "cost": "cost/token",
    "calls": "calls/token at {cost}",
}


def tables(summary: Mapping, style: str = "github", *, width: int | None = None) -> list[str]:
    """Return a run's tables of speed, leads, time and acceptance, as text.

    `width`: no line is longer; what does not fit is left out (`summary.md` has it all).
    """
    found = (f for name, _, f in captioned(summary) if name in ("speed", "lead", "time", "counts"))
    return [as_text(frame if width is None else within(frame, width), style) for frame in found]


def captioned(summary: Mapping) -> list[tuple[str, str, pd.DataFrame]]:
    """Return (name, caption, frame) of every table of a run that has something to show."""
    priced = f" (cost/token by {summary['costs']})" if summary["costs"] else ""
    lead = "Ouroboros over each other decoder, paired by prompt: above 1 it is ahead"
    shapes = "Proposed trees, a step on average; estimates of nodes whose parent was accepted"
    found = [
        ("speed", "Speed", speed_frame(summary)),
        ("lead", lead, lead_frame(summary)),
        ("time", "Time and memory", time_frame(summary)),
        ("counts", f"Calls and acceptance{priced}", count_frame(summary)),
        ("groups", "Latency speedup by group of prompts", group_frame(summary)),
        ("trees", shapes, tree_frame(summary)),
        ("sources", "Nodes of the trees by source", source_frame(summary)),
    ]
    if summary["published"]:
        found.append(("published", published_caption(summary), published_frame(summary)))
    return [one for one in found if one[2].shape[1] > 1]


def speed_frame(summary: Mapping) -> pd.DataFrame:
    """Speed, speedups, Ouroboros' lead, repetition, equality and scores of each decoder."""
    rows = summary["decoders"]
    scored = sorted({name for row in rows.values() for name in row["scores"]})
    own = "latency" if summary["timed"] else "predicted"
    return _filled([_speed_row(name, row, scored, own) for name, row in rows.items()])


def own_costs(summary: Mapping) -> bool:
    """Whether a timed run's counts are shown at the costs measured in that very run: a fit, no
    prediction."""
    return summary["timed"] and "with the run" in (summary["costs"] or "")


def lead_frame(summary: Mapping) -> pd.DataFrame:
    """Ouroboros' lead over each other decoder by every measure; empty where it did not run."""
    cost = cost_text([summary])
    found = _filled([_lead_row(name, row, cost) for name, row in others(summary).items()])
    return found.rename(columns={"predicted": "fit"}) if own_costs(summary) else found


def time_frame(summary: Mapping) -> pd.DataFrame:
    """Times per token and completion, their phases, memory and energy of each decoder."""
    return _filled([_time_row(name, row) for name, row in summary["decoders"].items()])


def count_frame(summary: Mapping) -> pd.DataFrame:
    """Calls, acceptance and sources of each decoder: what the machine changes only through the
    costs by which they are counted."""
    cost = cost_text([summary])
    return _filled([_count_row(name, row, cost) for name, row in summary["decoders"].items()])


def tree_frame(summary: Mapping) -> pd.DataFrame:
    """Size, shape and calibration of the trees of each decoder that they were kept of."""
    return _filled([_tree_row(n, row) for n, row in summary["decoders"].items() if row["trees"]])


def source_frame(summary: Mapping) -> pd.DataFrame:
    """For each source of a decoder's nodes, how many there were, were judged and were right."""
    return _filled(
        [
            {
                "decoder": name,
                "source": source,
                "nodes": str(own["proposed"]),
                "parent accepted": str(own["judged"]),
                "of these accepted": percent(
                    own["right"] / own["judged"] if own["judged"] else None
                ),
                "as estimated": percent(own["thought"]),
            }
            for name, row in summary["decoders"].items()
            for source, own in (row["trees"] or {"sources": {}})["sources"].items()
        ]
    )


def narrow_frame(summary: Mapping) -> pd.DataFrame:
    """Tokens per second, speedup and tokens per target call of each decoder: for one column."""
    own = "latency" if summary["timed"] else "predicted"
    return _filled(
        [
            {
                "decoder": name,
                "tokens/s": number(row["output_throughput"], 1),
                "speedup": interval(row[f"{own}_speedup"]),
                "tokens/call": number(row["tokens_per_target_call"], 2),
            }
            for name, row in summary["decoders"].items()
        ]
    )


def group_frame(summary: Mapping) -> pd.DataFrame:
    """Latency speedup of each decoder in each group of prompts; empty where there are no groups."""
    rows = summary["decoders"]
    names = dict.fromkeys(group for row in rows.values() for group in row["groups"])
    found = []
    for group in names:
        mine = {name: row["groups"][group] for name, row in rows.items() if group in row["groups"]}
        cells = {name: interval(row["latency_speedup"]) for name, row in mine.items()}
        prompts = max(row["samples"] for row in mine.values())
        found.append({"group": group, "samples": str(prompts), **cells})
    return _framed(found)


def _speed_row(name: str, row: Mapping, scored: Sequence[str], own: str) -> dict[str, str]:
    words = "" if own == "latency" else "predicted "
    cells = {
        "decoder": name,
        "samples": str(row["samples"]) + (f" ({row['failed']} failed)" if row["failed"] else ""),
        "tokens/s": number(row["output_throughput"], 1),
        f"{words or 'latency '}speedup": interval(row[f"{own}_speedup"]),
        "decode speedup": interval(row["decode_speedup"]),
        f"ouroboros over it{words and ', predicted'}": interval(row[f"{own}_vs_ouroboros"]),
        "TTFT ms": number(row["ttft_ms"], 1),
        "repetition": _repetition(row["repetition_rate"]),
        "unequal": _unequal(row),
        "lossless": row.get("verdict") or "-",
    }
    return cells | {score: _score(row, score) for score in scored}


def _lead_row(name: str, row: Mapping, cost: str) -> dict[str, str]:
    measure = next(m for m in MEASURES if row[f"{m}_vs_ouroboros"])
    return {
        "ouroboros over": name,
        "tokens/s": interval(row["latency_vs_ouroboros"]),
        "after the first step": interval(row["decode_vs_ouroboros"]),
        "TTFT": interval(row["ttft_vs_ouroboros"]),
        "predicted": interval(row["predicted_vs_ouroboros"]),
        "cost/token": interval(row["cost_vs_ouroboros"]),
        WORDS["calls"].format(cost=cost): interval(row["calls_vs_ouroboros"]),
        f"it is, by {WORDS[measure].format(cost=cost)}": said(row[f"{measure}_vs_ouroboros"]),
    }


def _time_row(name: str, row: Mapping) -> dict[str, str]:
    peak = row["peak_bytes"]
    return {
        "decoder": name,
        "macro speedup": interval(row["latency_speedup_macro"]),
        "vs transformers": interval(row["latency_speedup_vs_hf"]),
        "TPOT ms": number(row["tpot_ms"], 2),
        "E2E s": number(row["e2e_latency_s"], 2),
        "draft/verify/host %": _shares([row[f"{p}_share"] for p in ("draft", "verify", "host")]),
        "host ms/step": number(row["host_ms_per_step"], 2),
        "peak GiB": number(peak and peak / 2**30, 1),
        "J/token": number(row["energy_per_token_j"], 2),
    }


def _count_row(name: str, row: Mapping, cost: str) -> dict[str, str]:
    total = sum(row["tokens_by_source"].values())
    shares = {name: 100 * n / total for name, n in row["tokens_by_source"].items()}
    return {
        "decoder": name,
        "accept len": number(row["acceptance_length"], 2),
        "tokens/target call": number(row["tokens_per_target_call"], 2),
        "cost/token": ratio(row["cost_per_token"]),
        WORDS["calls"].format(cost=cost): ratio(row["calls_interval"]),
        "draft calls/token": number(row["draft_calls_per_token"], 2),
        "target forwards/token": number(row["target_forwards_per_token"], 3),
        "draft forwards/token": number(row["draft_forwards_per_token"], 3),
        "nodes/token": number(row["nodes_per_token"], 2),
        "draft nodes/token": number(row["draft_nodes_per_token"], 2),
        "nodes/call": number(row["scored_per_step"], 1),
        "draft accepted": percent(row["draft_acceptance_rate"]),
        "tokens by source %": ", ".join(f"{name} {share:.0f}" for name, share in shares.items()),
    }


def _tree_row(name: str, row: Mapping) -> dict[str, str]:
    trees, sure = row["trees"], row["trees"]["calibration"] or {}
    return {
        "decoder": name,
        "samples with trees": f"{trees['samples']} of {row['samples']}",
        "steps": str(trees["steps"]),
        "nodes": number(trees["nodes"], 1),
        "depth": number(trees["depth"], 1),
        "leaves": number(trees["leaves"], 1),
        "estimated": percent(sure.get("thought")),
        "accepted": percent(sure.get("came")),
        "log loss": number(sure.get("log_loss"), 3),
        "of the mean": number(sure.get("log_loss_of_the_mean"), 3),
        "Brier": number(sure.get("brier"), 3),
    }


def _framed(rows: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows).fillna("-")


def _filled(rows: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Leave out the columns that no row fills; whether texts are equal is always said."""
    frame = _framed(rows)
    empty = [name for name in frame if name != "unequal" and (frame[name] == "-").all()]
    return frame.drop(columns=empty)


def _shares(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return "/".join(f"{100 * share:.0f}" for share in known) if known else "-"


def _repetition(rate: float | None) -> str:
    return percent(rate) + ("" if rate is None else f", {metrics.of_real_text(rate)}")


def _unequal(row: Mapping) -> str:
    if row["unequal"] is None:
        return "-"
    return f"{row['unequal']} of {row['samples']}" if row["unequal"] else "0"


def _score(row: Mapping, name: str) -> str:
    found = row["score_intervals"].get(name)
    return ratio(found) if found else number(row["scores"].get(name), 3)
