"""The trees that were proposed: how large, how deep, and how well their probabilities foretold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.metrics.intervals import wilson
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import (
    decoder_marks,
    foot,
    head,
    new_figure,
    percentages,
    title,
    whiskers,
)

MOST_PANELS = 3


def reliability(summary: Mapping) -> Figure | None:
    """Estimated against actual acceptance in bins, how many nodes are in each below; a panel for
    each decoder that said how likely its nodes were. None where none did."""
    found = {n: row["trees"] for n, row in summary["decoders"].items() if row["trees"]}
    found = {name: trees["calibration"] for name, trees in found.items() if trees["calibration"]}
    found = dict(list(found.items())[:MOST_PANELS])
    if not found:
        return None
    marks = decoder_marks(list(summary["decoders"]))
    columns = max(2, len(found))
    with style.looks():
        figure = new_figure(5.2 if columns == 2 else 4.6)
        grid = figure.subplots(
            2, columns, sharex=True, squeeze=False, gridspec_kw={"height_ratios": (3, 1)}
        )
        for (upper, lower), (name, one) in zip(grid.T, found.items(), strict=False):
            _curve(upper, one["reliability"], marks[name].colour)
            _counts(lower, one["reliability"], marks[name].colour)
            head(upper, name)
        if len(found) == 1:
            _said(grid[:, 1], next(iter(found.values())))
        grid[0, 0].set_ylabel("accepted, of those nodes")
        grid[1, 0].set_ylabel("nodes")
        title(figure, "Estimated against actual acceptance of a node whose parent was accepted")
        figures = "; ".join(f"{name}: {words(one)}" for name, one in found.items())
        foot(figure, f"{summary['title']}. {figures}. Whiskers: 95 % (Wilson).")
    return figure


def fitted(about: Mapping) -> Figure:
    """Draw how likely tokens held out of a fit were thought, without and with the draft's view,
    against how often they came; `about` is `Weights.about`."""
    views = {"by phrases alone": about["index"], "with the draft's view": about["draft"]}
    with style.looks():
        figure = new_figure(5.2)
        grid = figure.subplots(2, 2, sharex=True, gridspec_kw={"height_ratios": (3, 1)})
        for (upper, lower), (name, one), colour in zip(
            grid.T, views.items(), ("C0", "C1"), strict=True
        ):
            _curve(upper, one["reliability"], colour)
            _counts(lower, one["reliability"], colour)
            head(upper, f"{name}: log loss {one['log_loss']:.3f}")
        grid[0, 0].set_ylabel("the target's, of those tokens")
        grid[1, 0].set_ylabel("tokens")
        least = ", ".join(f"{one['log_loss_of_the_mean']:.3f}" for one in views.values())
        texts = ", ".join(f"{count} of {name}" for name, count in about["prompts"].items())
        heats = ", ".join(f"{heat:g}" for heat in about["temperatures"])
        noise = ", ".join(f"{one:g}" for one in about["noise"])
        foot(
            figure,
            f"{about['pair']}; prompts: {texts}; temperatures {heats}; noise of the draft "
            f"{noise}; every fifth prompt, held out of the fit; log loss of always the mean: "
            f"{least}. Whiskers: 95 % (Wilson).",
        )
    return figure


def words(one: Mapping) -> str:
    """Return a calibration's figures in one line."""
    return (
        f"{one['observations']} nodes, log loss {one['log_loss']:.3f} (always the mean: "
        f"{one['log_loss_of_the_mean']:.3f}), Brier {one['brier']:.3f}"
    )


def tree_shapes(summary: Mapping) -> Figure | None:
    """Share of steps by the nodes and by the depth of the proposed tree, a line for each decoder
    whose trees were kept; None where none were."""
    found = {n: row["trees"] for n, row in summary["decoders"].items() if row["trees"]}
    if not found:
        return None
    marks = decoder_marks(list(summary["decoders"]))
    with style.looks():
        figure = new_figure(3.6)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, key, label in zip(panels, ("sizes", "depths"), ("nodes", "depth"), strict=True):
            for name, trees in found.items():
                counts = {int(k): n for k, n in trees[key].items()}
                places = np.arange(max(counts) + 2)
                reached = [sum(n for k, n in counts.items() if k >= place) for place in places]
                shares = np.array(reached) / trees["steps"]
                mark, mean = marks[name], trees["nodes" if key == "sizes" else "depth"]
                text = f"{name}: {mean:.1f} on average"
                axes.step(
                    places, shares, where="mid", color=mark.colour, linestyle=mark.line, label=text
                )
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            percentages(axes.yaxis)
            axes.set_ylim(0, 1.03)
            axes.grid(axis="y")
            axes.set_xlabel(f"{label} of the proposed tree, or more")
            axes.legend(loc="lower left", fontsize=9)
        panels[0].set_ylabel("share of steps")
        head(panels[0], "Size and depth of the proposed trees")
        foot(figure, f"{summary['title']}. The root, which is text already, is not counted.")
    return figure


def _curve(axes: Axes, rows: list[Mapping], colour: str) -> None:
    found = [wilson(round(row["came"] * row["observations"]), row["observations"]) for row in rows]
    axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.9, linestyle=":")
    axes.errorbar(
        [row["thought"] for row in rows],
        [one.value for one in found],
        yerr=whiskers([vars(one) for one in found]),
        color=colour,
        marker="o",
        markersize=5.5,
        elinewidth=1.2,
        capsize=2.5,
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    percentages(axes.yaxis)
    axes.grid()
    axes.set_axisbelow(True)


def _counts(axes: Axes, rows: list[Mapping], colour: str) -> None:
    places = [row["from"] + 0.05 for row in rows]
    bars = axes.bar(places, [row["observations"] for row in rows], 0.09, color=colour, alpha=0.75)
    axes.bar_label(bars, fontsize=7.5, padding=1)
    axes.margins(y=0.25)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    percentages(axes.xaxis)
    axes.set_xlabel("estimated")


def _said(panels: np.ndarray, one: Mapping) -> None:
    """Beside a single panel: its figures, and how to read it."""
    for axes in panels:
        axes.set_axis_off()
    rows = (
        ("nodes judged", f"{one['observations']}"),
        ("estimated, on average", f"{100 * one['thought']:.1f} %"),
        ("accepted", f"{100 * one['came']:.1f} %"),
        ("log loss", f"{one['log_loss']:.3f}"),
        ("log loss of always saying the mean", f"{one['log_loss_of_the_mean']:.3f}"),
        ("Brier score", f"{one['brier']:.3f}"),
    )
    axes = panels[0]
    for place, (name, value) in enumerate(rows):
        height = 0.88 - 0.11 * place
        axes.text(0.06, height, name, transform=axes.transAxes)
        axes.text(0.98, height, value, transform=axes.transAxes, ha="right", weight="bold")
    axes.text(
        0.06,
        0.12,
        "On the dotted line: as often accepted as estimated.\n"
        "Above it: the drafter was too careful; below: too sure.",
        transform=axes.transAxes,
        fontsize=9,
        color=style.MUTED,
    )
