"""What calls cost by size of tree and context, and what a step consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.shares import PHASES, stack
from ouroboros.bench.report.plots.style import MARKERS, OTHERS, foot, head, new_figure, title

UNTOLD = style.Mark("#c9c9c9", hatch="xx")


def verify_cost(facts: Mapping) -> Figure:
    """Milliseconds of a call over the nodes scored: a panel for each model, a line a context."""
    with style.looks():
        figure = new_figure(4.6)
        panels = figure.subplots(1, len(facts["calls"]), squeeze=False)[0]
        for axes, (role, calls) in zip(panels, facts["calls"].items(), strict=True):
            _lines(axes, calls["points"])
            head(axes, role)
        panels[0].set_ylabel("milliseconds per call")
        panels[0].legend(loc="upper left", fontsize=9)
        _, pair, dtype, _, batch, machine = facts["title"].split(" · ")
        title(figure, f"Cost of a call · {pair} · {dtype} · {batch} · {machine}")
        foot(
            figure,
            f"{facts['footnote']}. Medians; whiskers: half the distance between the quartiles. "
            f"Floor: the bytes that a call must read, at {facts['copy_gb_per_s']:.1f} GB/s of copy "
            "bandwidth.",
        )
    return figure


def step_time(facts: Mapping) -> Figure | None:
    """Milliseconds of a step by phase, a bar for each decoder; None where none had steps."""
    rows = {name: row for name, row in facts["steps"].items() if row["step_ms"]}
    if not rows:
        return None
    totals = [row["step_ms"] for row in rows.values()]
    marks = {**PHASES, "not told apart": UNTOLD}
    parts = {name: [(row["ms"] or {}).get(name, 0.0) for row in rows.values()] for name in PHASES}
    parts["not told apart"] = [0.0 if row["ms"] else row["step_ms"] for row in rows.values()]
    if not any(parts["not told apart"]):
        del parts["not told apart"]
    with style.looks():
        figure = new_figure(2.4 + 0.5 * len(rows))
        axes = figure.add_subplot()
        stack(axes, list(rows), parts, marks, totals=totals)
        _waits(axes, list(rows.values()))
        for place, (ms, row) in enumerate(zip(totals, rows.values(), strict=True)):
            text = f"{ms:.1f} ms for {row['tokens_per_step']:.2f} tokens"
            axes.text(ms + 0.01 * max(totals), place, text, va="center", fontsize=9)
        axes.set_xlim(0, 1.28 * max(totals))
        axes.set_xlabel("milliseconds per step, prefill left out")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts) + 1, fontsize=9)
        title(figure, f"Where a step's time goes · {facts['title']}")
        foot(figure, f"{facts['footnote']}. Numbers in the bars: % of the step.")
    return figure


def _lines(axes: Axes, points: Sequence[Mapping]) -> None:
    contexts = list(dict.fromkeys(row["context"] for row in points))
    for index, context in enumerate(contexts):
        mine = [row for row in points if row["context"] == context]
        axes.errorbar(
            [row["nodes"] for row in mine],
            [row["ms"] for row in mine],
            yerr=[row["spread_ms"] or 0.0 for row in mine],
            color=OTHERS[index % len(OTHERS)],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5,
            elinewidth=1,
            capsize=2.5,
            label=f"context {context}",
        )
    floor_ms = points[-1]["floor_ms"]
    if floor_ms:
        label = f"floor at context {contexts[-1]}"
        axes.axhline(floor_ms, color=style.INK, linestyle="--", linewidth=1, label=label)
    sizes = sorted({row["nodes"] for row in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.set_xlabel("nodes scored")


def _waits(axes: Axes, rows: Sequence[Mapping]) -> None:
    """A thin bar below each step: how much of it went by in waiting for the device."""
    axes.barh(
        [place + 0.41 for place in range(len(rows))],
        [row["wait_ms"] or 0.0 for row in rows],
        height=0.1,
        color=style.RED,
        label="of which wait for results",
    )
