"""A sweep: lines over one setting, heat maps over two; predictions where nothing was timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import RED, decoder_marks
from ouroboros.bench.report.summary import Summary

SPEEDUPS = {
    "latency_speedup": "speedup over greedy",
    "predicted_speedup": "predicted speedup over greedy",
}
COSTS = {
    "cost_per_token": "cost per token (less is better)",
    "calls_per_token": "calls per token (fewer is better)",
}


@style.styled
def sweep_lines(setting: str, values: Sequence, summaries: Sequence[Summary]) -> Figure | None:
    """Draw speedup and cost over one setting, a line per decoder.

    `values[i]` is the setting in `summaries[i]`; numbers are drawn to scale, words in order. None
    with fewer than two values.
    """
    order = sorted(range(len(values)), key=lambda index: sort_key(values[index]))
    values = [values[index] for index in order]
    frame: Any = _all_runs([summaries[index] for index in order])
    shown = _shown(frame)
    if len(set(map(str, values))) < 2 or not shown:
        return None
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    places = np.array(values if numeric else range(len(values)), float)
    marks = decoder_marks(list(frame.index.unique("decoder")))
    figure = style.new_figure(3.9)
    for axes, (metric, title) in zip(style.panels(figure, len(shown)), shown.items(), strict=True):
        for name, mark in marks.items():
            line = frame.xs(name, level="decoder").dropna(subset=metric)
            look = mark.points(label=name, yerr=style.reach(line, metric))
            axes.errorbar(places[line.index], line[metric], **look)
        axes.set_xticks(places, [str(value) for value in values])
        axes.grid(axis="y")
        axes.set(xlabel=setting, title=title)
        if metric in COSTS:
            axes.set_ylim(bottom=0)
    style.legend_above(figure)
    return figure


@style.styled
def sweep_map(
    settings: tuple[str, str], values: Sequence[tuple], summaries: Sequence[Summary], decoder: str
) -> Figure | None:
    """Draw speedup and cost of one decoder over two settings (across, down), the best cell framed.

    None if a setting has fewer than two values.
    """
    orders = [
        list(dict.fromkeys(map(str, sorted(side, key=sort_key))))
        for side in zip(*values, strict=True)
    ]
    frame: Any = _all_runs(summaries).xs(decoder, level="decoder")
    shown = _shown(frame)
    if min(map(len, orders)) < 2 or not shown:
        return None
    cells = [(str(values[index][1]), str(values[index][0])) for index in frame.index]
    frame.index = pd.MultiIndex.from_tuples(cells)
    figure = style.new_figure(1.9 + 0.5 * len(orders[1]))
    for axes, (metric, title) in zip(style.panels(figure, len(shown)), shown.items(), strict=True):
        best = _heat_map(axes, frame, metric, *orders)
        axes.set_title(f"{decoder}: {title}\nbest: {best}")
        axes.set_xlabel(settings[0])
    figure.axes[0].set_ylabel(settings[1])
    return figure


def sort_key(value) -> tuple:
    """Return a key that sorts numbers by size, then words, then None."""
    if isinstance(value, int | float):
        return 0, value, ""
    return (2, 0, "") if value is None else (1, 0, str(value))


def _heat_map(axes: Axes, frame: Any, metric: str, across: list[str], down: list[str]) -> str:
    """Draw a metric of `frame`, indexed by (down, across), frame the best cell; return its value.

    The colours span at least the best cell's 95 % interval, and cells inside it have dashed frames,
    so that noise looks like noise.
    """
    values = frame[metric].unstack().reindex(index=down, columns=across).to_numpy(float)
    less = metric in COSTS
    row, column = np.unravel_index((np.nanargmin if less else np.nanargmax)(values), values.shape)
    value, low, high = (frame.loc[(down[row], across[column]), metric + e] for e in style.ENDS)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    half = np.nanmax([np.nanmax(values) - np.nanmin(values), high - low]) / 2
    limits = {"vmin": middle - half, "vmax": middle + half, "aspect": "auto"}
    axes.imshow(values, cmap="cividis_r" if less else "cividis", **limits)
    form = "{:.3f}" if less else "{:.2f}x"
    for (y, x), cell in np.ndenumerate(values):
        if not np.isnan(cell):
            ink = "#000000" if (cell > middle) != less else "#ffffff"
            axes.text(x, y, form.format(cell), ha="center", va="center", color=ink)
        if (y, x) == (row, column) or cell == value or low <= cell <= high:
            look: Any = {"linewidth": 2.5, "linestyle": "-" if (y, x) == (row, column) else "--"}
            corner = (x - 0.46, y - 0.46)
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=RED, **look))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(range(len(across)), across)
    axes.set_yticks(range(len(down)), down)
    ends = "" if pd.isna(low) else f" [{form.format(low)}, {form.format(high)}]"
    return form.format(value) + ends


def _all_runs(summaries: Sequence[Summary]) -> pd.DataFrame:
    """The frames of all runs, indexed by the run's place and decoder."""
    frames = dict(enumerate(summary.frame for summary in summaries))
    return pd.concat(frames, names=["run", "decoder"])


def _shown(frame: pd.DataFrame) -> dict[str, str]:
    """The first known speedup and the first known cost, with their labels."""
    known = [[m for m in kind if frame[m].notna().any()] for kind in (SPEEDUPS, COSTS)]
    return {metric: (SPEEDUPS | COSTS)[metric] for kind in known for metric in kind[:1]}
