"""Stacked bars: where the time of a token goes, and who proposed the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import SOURCES, Mark, foot, head, new_figure, percentages

PHASES = {
    "draft": Mark(style.ORANGE, hatch="//"),
    "verify": Mark(style.BLUE),
    "host": Mark(style.GREY, hatch=".."),
}
WIDE_ENOUGH = 0.055
"""Share of the axis below which a segment carries no number."""


def time_shares(summary: Mapping) -> Figure | None:
    """Milliseconds per new token, divided into draft model, target and host.

    None where no decoder of this engine ran.
    """
    rows = {n: r for n, r in summary["decoders"].items() if r["verify_share"] is not None}
    rows = {name: row for name, row in rows.items() if row["output_throughput"]}
    if not rows:
        return None
    per_token = [1e3 / row["output_throughput"] for row in rows.values()]
    parts = {
        phase: [
            row[f"{phase}_share"] * ms for row, ms in zip(rows.values(), per_token, strict=True)
        ]
        for phase in PHASES
    }
    with style.looks():
        figure = new_figure(2.0 + 0.42 * len(rows))
        axes = figure.add_subplot()
        stack(axes, list(rows), parts, PHASES, totals=per_token)
        for place, ms in enumerate(per_token):
            axes.text(ms + 0.01 * max(per_token), place, f"{ms:.1f} ms", va="center", fontsize=9)
        axes.set_xlim(0, 1.12 * max(per_token))
        axes.set_xlabel("milliseconds per new token, prefill included")
        head(axes, "Where the time goes")
        figure.legend(loc="outside upper right", ncols=3, fontsize=9)
        foot(figure, f"{summary['title']}. Numbers in the bars: % of the time in steps.")
    return figure


def source_shares(summary: Mapping) -> Figure | None:
    """Shares of the new tokens by who proposed them; None where nothing is known of any."""
    rows = {
        name: row["tokens_by_source"]
        for name, row in summary["decoders"].items()
        if set(row["tokens_by_source"]) - {"unknown"}
    }
    if not rows:
        return None
    present = [name for name in SOURCES if any(name in row for row in rows.values())]
    strange = sorted({name for row in rows.values() for name in row} - set(SOURCES))
    marks = {name: SOURCES[name if name in SOURCES else "unknown"][0] for name in present + strange}
    totals = [sum(row.values()) for row in rows.values()]
    parts = {
        name: [row.get(name, 0) / total for row, total in zip(rows.values(), totals, strict=True)]
        for name in marks
    }
    with style.looks():
        figure = new_figure(2.3 + 0.42 * len(rows))
        axes = figure.add_subplot()
        stack(axes, list(rows), parts, marks, totals=[1.0] * len(rows))
        axes.set_xlim(0, 1)
        percentages(axes.xaxis)
        head(axes, "Who proposed the tokens")
        figure.legend(loc="outside upper right", ncols=min(len(marks), 6), fontsize=9)
        foot(figure, f"{summary['title']}.")
    return figure


def stack(
    axes: Axes,
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    marks: Mapping[str, Mark],
    *,
    totals: Sequence[float],
) -> None:
    """Draw horizontal stacked bars, each wide segment with its percentage of the bar."""
    end = max(totals)
    left = [0.0] * len(names)
    for part, widths in parts.items():
        mark = marks[part]
        axes.barh(
            range(len(names)),
            widths,
            left=left,
            height=0.66,
            color=mark.colour,
            hatch=mark.hatch,
            edgecolor="white",
            linewidth=0.5,
            label=part,
        )
        for place, (start, width, total) in enumerate(zip(left, widths, totals, strict=True)):
            if width > WIDE_ENOUGH * end:
                axes.text(start + width / 2, place, f"{100 * width / total:.0f}", **IN_BAR)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(names)), list(names), fontsize=10.5)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)


IN_BAR: dict = {
    "ha": "center",
    "va": "center",
    "fontsize": 8.5,
    "color": "#000000",
    "bbox": {
        "boxstyle": "round,pad=0.15",
        "facecolor": "white",
        "edgecolor": "none",
        "alpha": 0.85,
    },
}
