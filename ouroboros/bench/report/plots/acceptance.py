"""What the target accepts: draft tokens per step, by position, by source, trees, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.metrics.intervals import wilson
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import BLUE, RED, SOURCES, Mark, decoder_marks
from ouroboros.bench.report.summary import Summary

FEWEST_STEPS = 10
"""Positions that fewer steps reached are noise, and are left out."""
MOST_PANELS = 3


@style.styled
def acceptance_histograms(summary: Summary) -> Figure | None:
    """Draw the share of steps by accepted draft tokens, a panel per decoder on one scale.

    None if no decoder drafts.
    """
    counts = _filled(summary, "acceptance_histogram")
    found = {name: steps for name, steps in counts.items() if any(map(int, steps))}
    if not found:
        return None
    marks = decoder_marks(list(summary.frame.index))
    lines = -(-len(found) // 2)
    figure = style.new_figure(0.8 + 1.75 * lines)
    grid = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False).ravel()
    for index, axes in enumerate(grid):
        axes.set_visible(index < len(found))
        if index >= len(found) - 2:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("draft tokens accepted in a step")
    for axes, (name, counts) in zip(grid, found.items(), strict=False):
        steps = pd.Series(counts).rename(int)
        axes.bar(steps.index, steps / steps.sum(), width=0.8, color=marks[name].colour)
        mean: Any = summary.frame.loc[name, "tokens_per_target_call"]
        axes.set_title(f"{name}: {mean:.2f} tokens per step", fontsize=10, pad=4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.as_percent(axes)
    figure.supylabel("share of steps", fontsize=10)
    return figure


@style.styled
def acceptance_by_position(summary: Summary) -> Figure | None:
    """Draw the share of steps that accepted k draft tokens, of those that drafted k or more.

    A line per decoder; None if no position was reached by `FEWEST_STEPS` steps.
    """
    figure = style.new_figure(3.9)
    axes = figure.add_subplot()
    for name, mark in decoder_marks(list(summary.frame.index)).items():
        row: Any = summary.frame.loc[name]
        tries, rates = row["tries_per_position"], row["acceptance_rate_per_position"]
        if reached := sum(steps >= FEWEST_STEPS for steps in tries):
            axes.errorbar(range(1, reached + 1), rates[:reached], label=name, **mark.points())
    if not axes.lines:
        return None
    style.as_percent(axes)
    axes.set(ylim=(0, 1.02), xlabel="position in the draft", ylabel="accepted up to here")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_above(figure)
    return figure


@style.styled
def source_shares(summary: Summary) -> Figure | None:
    """Draw the shares of new tokens by who proposed them; None if no engine reports it."""
    rows = _filled(summary, "tokens_by_source").items()
    counts = {name: row for name, row in rows if set(row) - {"unknown"}}
    if not counts:
        return None
    frame = pd.DataFrame.from_dict(counts, orient="index").fillna(0)
    frame = frame[sorted(frame, key=[*SOURCES, *frame].index)]
    marks = {name: SOURCES.get(name, SOURCES["unknown"])[0] for name in map(str, frame)}
    figure = style.stacked_bars(frame.div(frame.sum(axis=1), axis=0), marks)
    figure.axes[0].set_xlim(0, 1)
    style.as_percent(figure.axes[0], "x")
    return figure


def reliability(summary: Summary) -> Figure | None:
    """Draw estimated against actual acceptance of tree nodes; None if no decoder estimates it."""
    trees = _filled(summary, "trees").items()
    found = {name: one["calibration"] for name, one in trees if one["calibration"]}
    marks = decoder_marks(list(summary.frame.index))
    return _calibration(dict(list(found.items())[:MOST_PANELS]), marks) if found else None


def fitted_weights(about: Mapping) -> Figure:
    """Draw the calibration of fitted weights (`Weights.about`): actual against predicted frequency.

    One panel shows the estimator that uses phrase features alone, the other the estimator that also
    uses the draft model's features.
    """
    panels = {"phrases alone": about["index"], "with the draft model": about["draft"]}
    return _calibration(panels, dict(zip(panels, (Mark(BLUE), Mark(RED)), strict=True)))


@style.styled
def _calibration(panels: Mapping[str, Mapping], marks: Mapping[str, Mark]) -> Figure:
    """A panel per calibration: actual over estimated shares with 95 % Wilson intervals, and below
    how many observations each bin has."""
    figure = style.new_figure(4.6)
    grid = figure.subplots(2, len(panels), sharex=True, squeeze=False, height_ratios=(3, 1))
    for (upper, lower), (name, one) in zip(grid.T, panels.items(), strict=True):
        bins = pd.DataFrame(one["reliability"])
        hits = (bins["came"] * bins["observations"]).round().astype(int)
        known = [vars(wilson(*pair)) for pair in zip(hits, bins["observations"], strict=True)]
        reach = [[ci["value"] - ci["low"], ci["high"] - ci["value"]] for ci in known]
        upper.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.9, linestyle=":")
        points = marks[name].points(marker="o", linestyle="solid")
        upper.errorbar(bins["thought"], bins["came"], yerr=np.maximum(reach, 0).T, **points)
        upper.set(xlim=(0, 1), ylim=(0, 1.03))
        style.as_percent(upper)
        baseline = f"(a constant estimate: {one['log_loss_of_the_mean']:.3f})"
        upper.set_title(f"{name}: log loss {one['log_loss']:.3f}\n{baseline}", fontsize=10)
        bars = lower.bar(bins["from"] + 0.05, bins["observations"], 0.09, color=marks[name].colour)
        lower.bar_label(bars, fontsize=8, padding=1)
        lower.margins(y=0.25)
        style.as_percent(lower, "x")
        lower.set_xlabel("estimated")
    grid[0, 0].set_ylabel("accepted")
    grid[1, 0].set_ylabel("observations")
    return figure


def _filled(summary: Summary, metric: str) -> dict[str, Any]:
    """A metric's values that are not empty, by decoder."""
    return {str(name): value for name, value in summary.frame[metric].items() if value}
