"""Plots of predictions: against measurements, over tree width, and over the draft's agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import LINES, decoder_marks
from ouroboros.tuning.agreement import DraftValue
from ouroboros.tuning.scaling import Law, Width

MARGIN = 0.10
COLUMNS = 3


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
    band = {"color": style.GRID, "alpha": 0.45, "linewidth": 0, "label": f"within {MARGIN:.0%}"}
    axes.fill_between(ends, (1 - MARGIN) * ends, (1 + MARGIN) * ends, **band)
    marks = decoder_marks(list(points["kind"].unique()))
    for kind, own in points.groupby("kind", sort=False):
        label = f"{kind}: {len(own)} settings, median error {errors[own.index].median():.1%}"
        look = marks[kind].points(linestyle="none", markersize=7, alpha=0.85)
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
def scaling_law(widths: Sequence[Width], laws: Mapping[str, Law | None]) -> Figure:
    """Draw tokens per step over nodes per step (logarithmic), a panel per decoder, with the
    least-squares line where one was fitted."""
    names = list(dict.fromkeys(width.decoder for width in widths))
    figure = style.new_figure(3.8)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        mark, law = decoder_marks(names)[name], laws.get(name)
        x, y = np.array(sorted((w.nodes, w.tokens) for w in widths if w.decoder == name)).T
        axes.plot(x, y, mark.marker, color=mark.colour)
        title = name
        if law is not None:
            ends = np.array([x.min(), x.max()])
            line = law.at_one + law.per_doubling * np.log2(ends)
            axes.plot(ends, line, color=mark.colour, linewidth=1, linestyle="dashed")
            title += f": {law.per_doubling:+.2f} per doubling, R² {law.r2:.2f}"
        axes.set_xscale("log", base=2)
        ticks = 2.0 ** np.arange(0, 1 + np.ceil(np.log2(x.max())))
        axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        axes.set_ylim(0, 1.08 * y.max())
        axes.set_xlabel("nodes scored per step")
        axes.grid(axis="y")
        axes.set_title(title)
    panels[0].set_ylabel("tokens per step")
    return figure


@style.styled
def agreement_curves(rows: Sequence[DraftValue]) -> Figure:
    """Draw speedup over the draft's agreement, a panel per group of prompts.

    `rows` share one set of costs. The line style is the draft's cost ratio; decoders without a
    draft are level lines.
    """
    frame = pd.json_normalize([asdict(row) for row in rows])
    frame = frame.rename(columns={"speedup.value": "speedup"}).sort_values("agreement")
    groups, ratios = list(dict.fromkeys(row.group for row in rows)), sorted(set(frame["ratio"]))
    marks = decoder_marks(list(dict.fromkeys(frame["decoder"])))
    down, across = -(-len(groups) // COLUMNS), min(COLUMNS, len(groups))
    figure = style.new_figure(1.2 + (2.5 if len(groups) > 1 else 3.6) * down)
    panels = list(figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    for axes, group in zip(panels, groups, strict=False):
        own = frame[frame["group"] == group]
        for (name, ratio), line in own.groupby(["decoder", "ratio"], sort=False):
            mark = marks[name]
            if line["agreement"].notna().all():
                look = mark.points(linestyle=LINES[ratios.index(ratio) % len(LINES)], markersize=4)
                look |= {"label": f"{name}, a draft call costs {ratio:g}"}
                error = style.reach(line, "speedup")
                axes.errorbar(line["agreement"], line["speedup"], yerr=error, **look)
            elif ratio == ratios[0]:
                value, low, high = line.iloc[0][["speedup", "speedup.low", "speedup.high"]]
                axes.axhline(value, color=mark.colour, linewidth=1.4, label=f"{name}, no draft")
                if pd.notna(low):
                    axes.axhspan(low, high, color=mark.colour, alpha=0.12, linewidth=0)
        axes.set_title(f"{group}, {own['prompts'].iloc[0]} prompts")
        axes.grid(axis="y")
    for axes in panels[max(0, len(groups) - across) : len(groups)]:
        axes.set_xlabel("agreement of the draft")
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    figure.supylabel("speedup over greedy", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    what = "Error bars and bands: 95 % bootstrap over prompts, paired"
    place = {"loc": "outside lower center", "ncols": 3, "title": what, "title_fontsize": 9}
    figure.legend(handles, labels, **place)
    return figure
