"""Speedup against the agreement of a draft, a panel for each group of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import decoder_marks, head, new_figure, title, whiskers

COLUMNS = 3
LINES = ("solid", "dashed", "dotted", "dashdot")


def agreement_curves(rows: Sequence[Mapping], *, about: str) -> Figure:
    """Draw rows of one costs' name ("group", "ratio", "decoder", "agreement", "speedup").

    Line styles are the draft's cost ratios; decoders without a draft are level lines. `about` is
    the title.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    ratios = sorted({row["ratio"] for row in rows})
    down = -(-len(groups) // COLUMNS)
    across = min(COLUMNS, len(groups))
    drafting = [row["decoder"] for row in rows if row["agreement"] is not None]
    marks = decoder_marks(list(dict.fromkeys([*drafting, *(row["decoder"] for row in rows)])))
    with style.looks():
        figure = new_figure(1.5 + (2.5 if len(groups) > 1 else 3.6) * down)
        panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat
        for axes, group in zip(panels, groups, strict=False):
            own = [row for row in rows if row["group"] == group]
            _panel(axes, own, ratios, marks)
            prompts = own[0]["prompts"]
            head(axes, f"{group}, {prompts} prompts")
            axes.grid(axis="y")
        for axes in list(panels)[len(groups) :]:
            axes.set_axis_off()
        figure.supylabel("speedup over greedy", fontsize=10)
        for axes in figure.axes[: len(groups)][-across:]:
            axes.set_xlabel("agreement of the draft")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        title(figure, about)
    return figure


def _panel(
    axes: Axes, rows: Sequence[Mapping], ratios: Sequence[float], marks: Mapping[str, style.Mark]
) -> None:
    for name in dict.fromkeys(row["decoder"] for row in rows):
        for ratio, line in zip(ratios, LINES, strict=False):
            own = [row for row in rows if row["decoder"] == name and row["ratio"] == ratio]
            if own[0]["agreement"] is None:
                if ratio == ratios[0]:
                    _level(axes, own[0], marks[name])
                continue
            own.sort(key=lambda row: row["agreement"])
            found = [row["speedup"] for row in own]
            axes.errorbar(
                [row["agreement"] for row in own],
                [one["value"] for one in found],
                yerr=whiskers(found),
                color=marks[name].colour,
                marker=marks[name].marker,
                linestyle=line,
                markersize=4,
                linewidth=1.4,
                elinewidth=0.8,
                label=f"{name}, a draft call costs {ratio:g}",
            )


def _level(axes: Axes, row: Mapping, mark: style.Mark) -> None:
    one = row["speedup"]
    axes.axhline(
        one["value"], color=mark.colour, linewidth=1.4, label=f"{row['decoder']}, no draft"
    )
    if one["low"] is not None:
        axes.axhspan(one["low"], one["high"], color=mark.colour, alpha=0.12, linewidth=0)
