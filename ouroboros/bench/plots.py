"""Pictures of a summary. Drawn without a display, readable at 900 pixels."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

OURS, OTHERS, PEERS = "#c8553d", "#6b7fa3", "#b9b9b9"


def plot_speedups(summary: Mapping, path: Path) -> None:
    """Draw latency speedup over greedy, one bar per decoder in the config's order, with intervals.

    Nothing is drawn where no decoder has a speedup (no greedy run to compare with).
    """
    rows = {name: row for name, row in summary["decoders"].items() if row["latency_speedup"]}
    path.unlink(missing_ok=True)
    if not rows:
        return
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(9, 1.9 + 0.42 * len(rows)), dpi=100, layout=layout)
    axes = figure.add_subplot()
    _bars(axes, rows)
    axes.set_title("\n".join(textwrap.wrap(summary["title"], 88)), fontsize=11, loc="left")
    figure.supxlabel(
        "\n".join(textwrap.wrap(_footnote(summary, rows), 130)),
        fontsize=8,
        color="#555555",
        x=0.01,
        ha="left",
    )
    figure.savefig(path)


def _bars(axes: Axes, rows: Mapping[str, Mapping]) -> None:
    found = [row["latency_speedup"] for row in rows.values()]
    values = [f["value"] for f in found]
    low = [f["value"] - f["low"] if f["low"] is not None else 0 for f in found]
    high = [f["high"] - f["value"] if f["high"] is not None else 0 for f in found]
    places = range(len(rows))
    axes.barh(
        places,
        values,
        height=0.62,
        color=[_colour(name) for name in rows],
        xerr=[low, high],
        error_kw={"ecolor": "#333333", "elinewidth": 1.2, "capsize": 3},
    )
    end = max(value + extra for value, extra in zip(values, high, strict=True))
    for place, value, extra, row in zip(places, values, high, rows.values(), strict=True):
        label = f"{value:.2f}x   {row['output_throughput']:.1f} tok/s"
        axes.text(value + extra + 0.015 * end, place, label, va="center", fontsize=9.5)
    axes.axvline(1, color="#333333", linewidth=0.8, linestyle=":")
    axes.set_yticks(places, list(rows), fontsize=10.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * end)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("speedup over greedy on the same engine (time per token, prefill included)")
    axes.spines[["top", "right"]].set_visible(False)


def _colour(name: str) -> str:
    if _is_peer(name):
        return PEERS
    return OURS if name.startswith("ouroboros") else OTHERS


def _is_peer(name: str) -> bool:
    return name.startswith("hf_")


def _footnote(summary: Mapping, rows: Mapping[str, Mapping]) -> str:
    rates = [r["repetition_rate"] for r in rows.values() if r["repetition_rate"] is not None]
    worst = max(rates, default=0.0)
    grey = "Grey: transformers' own generation. " if any(map(_is_peer, rows)) else ""
    mark = " (above 30 %: flatters drafts taken from the text)" if worst > 0.3 else ""
    return (
        f"{summary['footnote']}. Whiskers: 95 % bootstrap over prompts. "
        f"{grey}"
        f"Repetition rate of the text: {100 * worst:.0f} %{mark}."
    )
