"""Predicted against measured: a mark for each decoder of each run, the diagonal, and its margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import decoder_marks, foot, head, new_figure
from ouroboros.tuning.accuracy import Point, accuracy

MARGIN = 0.10


def predicted_dots(points: Sequence[Point], *, what: str, about: str) -> Figure:
    """Return a scatter of predictions of `what` against measurements; `about` is the small print.

    Raises `ValueError` without points.
    """
    found = accuracy(points)
    kinds = list(dict.fromkeys(point.kind for point in points))
    marks = decoder_marks(kinds)
    with style.looks():
        figure = new_figure(6.4)
        axes = figure.add_subplot()
        _diagonal(axes, points)
        for kind in kinds:
            own = [point for point in points if point.kind == kind]
            error = accuracy(own).median_error
            axes.scatter(
                [point.measured for point in own],
                [point.predicted for point in own],
                color=marks[kind].colour,
                marker=marks[kind].marker,
                s=44,
                alpha=0.85,
                edgecolors="white",
                linewidths=0.6,
                label=f"{kind.replace('_', ' ')}: {len(own)} settings, median error {error:.1%}",
                zorder=3,
            )
        axes.set_xlabel(f"{what}, measured")
        axes.set_ylabel(f"{what}, predicted")
        axes.set_aspect("equal")
        axes.grid()
        axes.legend(loc="upper left", fontsize=9)
        errors = f"median error {found.median_error:.1%}, largest {found.largest_error:.1%}"
        head(axes, f"{found.points} settings predicted: {errors}")
        foot(figure, f"Grey: within {MARGIN:.0%}. {about}")
    return figure


def _diagonal(axes: Axes, points: Sequence[Point]) -> None:
    values = [value for point in points for value in (point.predicted, point.measured)]
    low, high = 0.94 * min(values), 1.06 * max(values)
    ends = np.array([low, high])
    axes.plot(ends, ends, color=style.MUTED, linewidth=1, zorder=2)
    axes.fill_between(
        ends, (1 - MARGIN) * ends, (1 + MARGIN) * ends, color=style.GRID, alpha=0.45, linewidth=0
    )
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
