"""Plots of predictions: against measurements, and over tree width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import decoder_marks

MARGIN = 0.10


@style.styled
def predicted_dots(points: pd.DataFrame, *, what: str) -> Figure:
    """Draw predictions of `what` against measurements, with the diagonal and ±10 % around it.

    `points` has a row per setting: kind (of decoder), predicted, measured.
    """
    values = points[["predicted", "measured"]].to_numpy()
    ends = np.array([0.94 * values.min(), 1.06 * values.max()])
    errors = (points["predicted"] / points["measured"] - 1).abs()
    figure = style.new_figure(6.2)
    axes = figure.add_subplot()
    axes.plot(ends, ends, color=style.MUTED, linewidth=1)
    band: dict[str, Any] = {"color": style.GRID, "alpha": 0.45, "linewidth": 0}
    band["label"] = f"within {MARGIN:.0%}"
    axes.fill_between(ends, (1 - MARGIN) * ends, (1 + MARGIN) * ends, **band)
    marks = decoder_marks(list(points["kind"].unique()))
    for kind, own in points.groupby("kind", sort=False):
        label = f"{kind}: {len(own)} settings, median error {errors[own.index].median():.1%}"
        look = marks[str(kind)].points(linestyle="none", markersize=7, alpha=0.85)
        axes.errorbar(own["measured"], own["predicted"], label=label.replace("_", " "), **look)
    axes.set(xlim=ends, ylim=ends, xlabel=f"{what}, measured", ylabel=f"{what}, predicted")
    axes.set_aspect("equal")
    axes.grid()
    axes.legend(loc="upper left")
    axes.set_title(
        f"{len(points)} settings predicted: median error {errors.median():.1%}, "
        f"largest {errors.max():.1%}"
    )
    return figure


@style.styled
def scaling_law(widths: Sequence[Mapping], laws: Mapping[str, Mapping | None]) -> Figure:
    """Draw tokens per step over nodes per step (logarithmic), a panel per decoder, with the
    least-squares line where one was fitted."""
    names = list(dict.fromkeys(width["decoder"] for width in widths))
    figure = style.new_figure(3.8)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        mark, law = decoder_marks(names)[name], laws.get(name)
        x, y = np.array(sorted((w["nodes"], w["tokens"]) for w in widths if w["decoder"] == name)).T
        axes.plot(x, y, mark.marker, color=mark.colour)
        title = name
        if law is not None:
            ends = np.array([x.min(), x.max()])
            line = law["at_one"] + law["per_doubling"] * np.log2(ends)
            axes.plot(ends, line, color=mark.colour, linewidth=1, linestyle="dashed")
            title += f": {law['per_doubling']:+.2f} per doubling, R² {law['r2']:.2f}"
        axes.set_xscale("log", base=2)
        ticks = 2.0 ** np.arange(0, 1 + np.ceil(np.log2(x.max())))
        axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axes.set_ylim(0, 1.08 * y.max())
        axes.set_xlabel("nodes scored per step")
        axes.grid(axis="y")
        axes.set_title(title)
    panels[0].set_ylabel("tokens per step")
    return figure
