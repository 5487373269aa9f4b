"""What the target accepted: how many draft tokens per step, and how far into a draft."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import (
    decoder_marks,
    foot,
    head,
    new_figure,
    percentages,
    title,
)

FEWEST_TRIES = 10
"""Positions that fewer steps reached are noise, and not drawn."""


def acceptance_histograms(summary: Mapping) -> Figure | None:
    """Share of steps by draft tokens accepted: one small panel per decoder, on one scale.

    None where no decoder drafts.
    """
    rows = _drafting(summary)
    if not rows:
        return None
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    with style.looks():
        figure = new_figure(1.2 + 1.75 * lines)
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        marks = decoder_marks(list(summary["decoders"]))
        for axes, (name, row) in zip(grid.flat, rows.items(), strict=False):
            _histogram(axes, row, marks[name].colour)
            mean = row["tokens_per_target_call"]
            axes.set_title(f"{name}: {mean:.2f} tokens per step", fontsize=10, pad=4)
        for axes in list(grid.flat)[len(rows) :]:
            axes.set_visible(False)
        for axes in [*grid[-1], *([grid[-2, -1]] if len(rows) % columns else [])]:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("draft tokens accepted in a step")
        title(figure, "Draft tokens accepted per step")
        figure.supylabel("share of steps", fontsize=10)
        foot(figure, f"{summary['title']}. Every step also yields one token of the target's own.")
    return figure


def acceptance_by_position(summary: Mapping) -> Figure | None:
    """Of the steps that drafted k tokens or more, the share that accepted k: a line per decoder.

    None where no decoder has a position that enough steps reached.
    """
    rows = {
        name: row["acceptance_rate_per_position"][:reached]
        for name, row in summary["decoders"].items()
        if (reached := sum(tries >= FEWEST_TRIES for tries in row["tries_per_position"]))
    }
    if not rows:
        return None
    marks = decoder_marks(list(summary["decoders"]))
    with style.looks():
        figure = new_figure(4.4)
        axes = figure.add_subplot()
        for name, rates in rows.items():
            mark = marks[name]
            axes.plot(
                range(1, len(rates) + 1),
                rates,
                color=mark.colour,
                marker=mark.marker,
                linestyle=mark.line,
                label=name,
                markersize=5,
            )
        _percentages(axes)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted up to here")
        head(axes, "Acceptance by position in the draft")
        figure.legend(loc="outside upper right", ncols=min(len(rows), 5), fontsize=9)
        foot(
            figure,
            f"{summary['title']}. Of the steps that drafted so far; positions that fewer than "
            f"{FEWEST_TRIES} steps reached are left out.",
        )
    return figure


def _drafting(summary: Mapping) -> dict[str, Mapping]:
    """The decoders that accepted a draft token in some step."""
    rows = summary["decoders"].items()
    return {name: row for name, row in rows if any(int(k) for k in row["acceptance_histogram"])}


def _histogram(axes: Axes, row: Mapping, colour: str) -> None:
    counts = {int(k): n for k, n in row["acceptance_histogram"].items()}
    total = sum(counts.values())
    axes.bar(list(counts), [n / total for n in counts.values()], width=0.8, color=colour)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percentages(axes)


def _percentages(axes: Axes) -> None:
    percentages(axes.yaxis)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
