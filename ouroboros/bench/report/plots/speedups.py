"""Speedup over greedy and cost per token: bars of one run, dots over several runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.metrics.metrics import REAL_TEXT
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import decoder_marks
from ouroboros.bench.report.summary import Summary

SPEEDUP = "speedup over greedy on the same engine (time per token, prefill included)"


def speedup_bars(summary: Summary) -> Figure | None:
    """Draw each decoder's speedup over greedy with its interval; predicted if nothing was timed.

    None if no decoder has a speedup (the run has no greedy).
    """
    if summary.facts.timed:
        label = "{latency_speedup:.2f}x · {output_throughput:.1f} tok/s"
        return _bars(summary, "latency_speedup", SPEEDUP, label)
    axis = f"speedup over greedy, predicted by {summary.facts.costs}"
    return _bars(summary, "predicted_speedup", axis, "{predicted_speedup:.2f}x, predicted")


def cost_bars(summary: Summary) -> Figure | None:
    """Draw each decoder's cost per token with its interval; calls per token if no costs are known.

    None if nothing was measured.
    """
    metric = "calls_per_token"
    axis = "(target calls + draft cost x draft calls) / new tokens; fewer is better"
    if summary.facts.costs:
        metric = "cost_per_token"
        axis = (
            f"cost per token by {summary.facts.costs}, in target calls of one node; less is better"
        )
    label = f"{{{metric}:.3f}} · {{tokens_per_target_call:.2f}} tokens/target call"
    return _bars(summary, metric, axis, label)


@style.styled
def speedup_dots(summaries: Mapping[str, Summary]) -> Figure | None:
    """Draw speedups with intervals: a group of rows per run, a marker per decoder.

    None with fewer than two runs that have speedups.
    """
    frame = pd.concat({label: one.frame for label, one in summaries.items()}, names=["run"])
    frame = frame.dropna(subset="latency_speedup").drop(PLAIN, level="decoder", errors="ignore")
    runs = list(frame.index.unique("run"))
    if len(runs) < 2:
        return None
    names = list(frame.index.unique("decoder"))
    figure = style.new_figure(1.4 + len(runs) * (0.25 + 0.17 * len(names)))
    axes = figure.add_subplot()
    for index, name in enumerate(names):
        own: Any = frame.xs(name, level="decoder")
        rows = [runs.index(run) + 0.7 * ((index + 0.5) / len(names) - 0.5) for run in own.index]
        points = decoder_marks(names)[name].points(linestyle="none", markersize=6, label=name)
        error = style.reach(own, "latency_speedup")
        axes.errorbar(own["latency_speedup"], rows, xerr=error, **points)
    for row in range(1, len(runs)):
        axes.axhline(row - 0.5, color=style.GRID, linewidth=0.6)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel(SPEEDUP)
    style.name_rows(axes, runs)
    style.legend_above(figure)
    return figure


def error_bars(summaries: Iterable[Summary]) -> str:
    """Say what error bars are, if the runs have any: intervals need two prompts."""
    known = [one.frame.filter(regex=r"\.low$").notna().any(axis=None) for one in summaries]
    return " Error bars: 95 % bootstrap over prompts." if any(known) else ""


def note(summary: Summary) -> str:
    """Return the small print of a run's bars: host, versions, error bars, repetition."""
    text = f"{summary.facts.footnote}.{error_bars([summary])} Grey: greedy and other engines (hf_)."
    repetition = summary.frame["repetition_rate"].dropna()
    if len(repetition):
        text += f" Repetition of {repetition.index[0]}'s text: {repetition.iloc[0]:.0%}"
        text += " (large models: {:.0%} to {:.0%}).".format(*REAL_TEXT)
    return text


@style.styled
def _bars(summary: Summary, metric: str, axis: str, label: str) -> Figure | None:
    """One bar per decoder that has the metric; beside the plot, where no error bar can cross it,
    its `label`, a format of the decoder's row."""
    frame = summary.frame.dropna(subset=metric)
    if not len(frame):
        return None
    figure = style.new_figure(1.1 + 0.42 * len(frame))
    axes = figure.add_subplot()
    marks = decoder_marks(list(summary.frame.index))
    colours = [marks[name].colour for name in frame.index]
    error = style.reach(frame, metric)
    ends = {"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3}
    axes.barh(range(len(frame)), frame[metric], 0.62, color=colours, xerr=error, error_kw=ends)
    beside = axes.get_yaxis_transform()
    for place, row in enumerate(frame.to_dict("records")):
        axes.text(1.01, place, label.format_map(row), va="center", fontsize=9.5, transform=beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.03 * max(1, (frame[metric] + np.nan_to_num(error[1])).max()))
    axes.set_xlabel(axis)
    style.name_rows(axes, list(frame.index))
    return figure
