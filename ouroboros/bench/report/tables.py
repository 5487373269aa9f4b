"""Tables of summaries: one frame of cells per question, written as Markdown, CSV or LaTeX.

A cell is text as a reader sees it ("3.04x [2.15, 3.86]", "-" where nothing is known); the same
numbers in full, one row per run and decoder, are `compare.numbers_frame`'s. A measure that no
decoder has is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ouroboros.bench.measure import metrics
from ouroboros.bench.report.summary import BASELINE

LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def tables(summary: Mapping, style: str = "github") -> tuple[str, str]:
    """Return the table of speed and the table of acceptance, as text."""
    return as_text(speed_frame(summary), style), as_text(count_frame(summary), style)


def speed_frame(summary: Mapping) -> pd.DataFrame:
    """Times, speedups, memory, energy, repetition, equality and scores of each decoder."""
    rows = summary["decoders"]
    scored = sorted({name for row in rows.values() for name in row["scores"]})
    return _filled(_framed([_speed_row(name, row, scored) for name, row in rows.items()]))


def count_frame(summary: Mapping) -> pd.DataFrame:
    """Calls, acceptance and sources of each decoder: nothing that depends on the machine."""
    return _filled(_framed([_count_row(name, row) for name, row in summary["decoders"].items()]))


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


def published_frame(summary: Mapping) -> pd.DataFrame:
    """Published tokens/s and speedup over greedy beside the measured ones, and their ratio."""
    published = (summary["published"] or {}).get("tokens_per_s", {})
    return _framed(
        [
            {
                "decoder": name,
                "published tokens/s": number(published.get(name), 1),
                "published speedup": times(over_greedy(published, name)),
                "measured tokens/s": number(row.get("output_throughput"), 1),
                "measured speedup": interval(row.get("latency_speedup")),
                "measured / published": number(ratio_of_ratios(summary, name), 2),
            }
            for name in dict.fromkeys([*published, *summary["decoders"]])
            for row in [summary["decoders"].get(name, {})]
        ]
        if published
        else []
    )


def published_caption(summary: Mapping) -> str:
    """Return one line: where the published numbers come from, and what was measured here."""
    published = summary["published"]
    what = {"model": "", "stand-in": " (a stand-in)", "rehearsal": " (a rehearsal)"}
    return (
        f"Published: {published.get('source', 'source not given')}, on "
        f"{published.get('hardware', 'hardware not given')}. "
        f"Measured{what[summary['nature']]}: on {summary['device']}. Speedups are over greedy."
    )


def over_greedy(tokens_per_s: Mapping[str, float], name: str) -> float | None:
    """Return tokens/s of a decoder / tokens/s of greedy, None where either is not known."""
    ours, base = tokens_per_s.get(name), tokens_per_s.get(BASELINE)
    return ours / base if ours and base else None


def ratio_of_ratios(summary: Mapping, name: str) -> float | None:
    """Return measured speedup / published speedup of a decoder."""
    published = over_greedy((summary["published"] or {}).get("tokens_per_s", {}), name)
    measured = summary["decoders"].get(name, {}).get("latency_speedup")
    return measured["value"] / published if measured and published else None


def as_text(frame: pd.DataFrame, style: str = "github") -> str:
    """Return a frame as text (`style`: one of tabulate's), the first column to the left."""
    align = ["left", *["right"] * (frame.shape[1] - 1)] if len(frame) else None
    return frame.to_markdown(index=False, tablefmt=style, disable_numparse=True, colalign=align)


def as_latex(frame: pd.DataFrame, caption: str) -> str:
    """Return a frame as a LaTeX table with booktabs rules, everything escaped."""
    safe = caption.translate(LATEX)
    columns = "l" + "r" * (frame.shape[1] - 1)
    return frame.to_latex(index=False, escape=True, caption=safe, column_format=columns)


def write_table(frame: pd.DataFrame, stem: Path, *, caption: str) -> None:
    """Write `stem`.md, .csv and .tex; the LaTeX one needs \\usepackage{booktabs}."""
    stem.with_suffix(".md").write_text(f"{caption}\n\n{as_text(frame)}\n", encoding="utf-8")
    stem.with_suffix(".tex").write_text(as_latex(frame, caption), encoding="utf-8")
    frame.to_csv(stem.with_suffix(".csv"), index=False)


def number(value: float | None, digits: int) -> str:
    """Return a rounded number, "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return "-" if value is None else f"{100 * value:.0f} %"


def times(value: float | None) -> str:
    """Return a ratio as "1.23x"."""
    return "-" if value is None else f"{value:.2f}x"


def interval(found: Mapping | None) -> str:
    """Return a ratio and its interval."""
    if found is None:
        return "-"
    return times(found["value"]) + _spread(found, 2)


def calls(row: Mapping) -> str:
    """Return a decoder's calls per token and their interval."""
    found = row["calls_interval"]
    return "-" if found is None else number(found["value"], 3) + _spread(found, 3)


def _speed_row(name: str, row: Mapping, scored: Sequence[str]) -> dict[str, str]:
    shares = [row[f"{phase}_share"] for phase in ("draft", "verify", "host")]
    peak = row["peak_bytes"]
    cells = {
        "decoder": name,
        "samples": str(row["samples"]) + (f" ({row['failed']} failed)" if row["failed"] else ""),
        "tokens/s": number(row["output_throughput"], 1),
        "decode speedup": interval(row["decode_speedup"]),
        "latency speedup": interval(row["latency_speedup"]),
        "macro speedup": interval(row["latency_speedup_macro"]),
        "vs transformers": interval(row["latency_speedup_vs_hf"]),
        "TTFT ms": number(row["ttft_ms"], 1),
        "TPOT ms": number(row["tpot_ms"], 2),
        "E2E s": number(row["e2e_latency_s"], 2),
        "draft/verify/host %": _shares(shares),
        "peak GiB": number(peak and peak / 2**30, 1),
        "J/token": number(row["energy_per_token_j"], 2),
        "repetition": _repetition(row["repetition_rate"]),
        "unequal": _unequal(row),
        "lossless": row.get("verdict") or "-",
    }
    return cells | {score: _score(row, score) for score in scored}


def _count_row(name: str, row: Mapping) -> dict[str, str]:
    total = sum(row["tokens_by_source"].values())
    shares = {name: 100 * n / total for name, n in row["tokens_by_source"].items()}
    return {
        "decoder": name,
        "accept len": number(row["acceptance_length"], 2),
        "tokens/target call": number(row["tokens_per_target_call"], 2),
        "draft calls/token": number(row["draft_calls_per_token"], 2),
        "calls/token": calls(row),
        "calls vs ouroboros": interval(row["calls_vs_ouroboros"]),
        "draft accepted": percent(row["draft_acceptance_rate"]),
        "nodes/call": number(row["scored_per_step"], 1),
        "host ms/step": number(row["host_ms_per_step"], 2),
        "tokens by source %": ", ".join(f"{name} {share:.0f}" for name, share in shares.items()),
    }


def _framed(rows: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows).fillna("-")


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out the columns that no row fills; whether texts are equal is always said."""
    empty = [name for name in frame if name != "unequal" and (frame[name] == "-").all()]
    return frame.drop(columns=empty)


def _shares(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return "/".join(f"{100 * share:.0f}" for share in known) if known else "-"


def _repetition(rate: float | None) -> str:
    return percent(rate) + (" (!)" if rate is not None and rate > metrics.REPETITIVE else "")


def _unequal(row: Mapping) -> str:
    if row["unequal"] is None:
        return "-"
    return f"{row['unequal']} of {row['samples']}" if row["unequal"] else "0"


def _score(row: Mapping, name: str) -> str:
    found = row["score_intervals"].get(name)
    return number(row["scores"].get(name), 3) + (_spread(found, 3) if found else "")


def _spread(found: Mapping, digits: int) -> str:
    low, high = found["low"], found["high"]
    return "" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"
