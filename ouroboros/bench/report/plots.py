"""Plots of runs: each function returns a figure, or None if there is nothing to draw.

All plots share one style, are readable at 600 pixels, and never distinguish by colour alone. They
have no title: a report adds captions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.report import style
from ouroboros.bench.report.summary import Summary, interval_of


class Setting(NamedTuple):
    """A setting that differs between runs: a short name, its value in each run, and its options.
    Options that always change together count as one setting."""

    name: str
    values: Sequence
    members: Sequence[str] = ()


BARS = {
    "latency_speedup": (
        "speedup over greedy (time per token, prefill included)",
        "{latency_speedup:.2f}x · {output_throughput:.1f} tok/s",
    ),
    "predicted_speedup": (
        "speedup over greedy, predicted with {costs}",
        "{predicted_speedup:.2f}x, predicted",
    ),
    "cost_per_token": (
        "cost per token with {costs}, in target calls; lower is better",
        "{cost_per_token:.3f} · {tokens_per_target_call:.2f} tokens/call",
    ),
    "calls_per_token": (
        "(target calls + draft cost x draft calls) / new tokens; lower is better",
        "{calls_per_token:.3f} · {tokens_per_target_call:.2f} tokens/call",
    ),
}
"""By metric: the label of the axis and the label of each bar."""
SPEED = ("latency_speedup", "predicted_speedup")
COST = ("cost_per_token", "calls_per_token")
FEWEST_STEPS = 10
"""Positions reached by fewer steps are left out, because their shares are noise."""
POSITIONS = {
    "accepted_per_position": "of all steps",
    "conditional_per_position": "of the steps that reached it",
}
"""The panels of acceptance by position: metrics and titles."""
PANELS_PER_ROW = 3


def conditions(summaries: Sequence[Summary], *, intervals: bool = True) -> str:
    """Return the models, numbers of prompts and load of the runs, to end a caption; with
    `intervals`, add a sentence on error bars, if there are any."""
    facts = [one.facts for one in summaries]
    models = " or ".join(dict.fromkeys(one.models for one in facts))
    prompts = " or ".join(map(str, sorted({one.prompts for one in facts})))
    busy = max(one.busy for one in facts)
    text = f" Models: {models}; {prompts} prompt{'s' * (prompts != '1')}{busy and f'; {busy}'}."
    known = any(s.frame.filter(regex=r"\.low$").notna().any(axis=None) for s in summaries)
    return text + " Error bars: 95 % bootstrap over prompts." * (known and intervals)


def note(summary: Summary) -> str:
    """Return the small print below a run's bars: host, versions, error bars."""
    return f"{summary.facts.footnote}.{conditions([summary])} Grey: greedy, hf_ and llama_cpp."


@style.styled
def bars(summary: Summary, metrics: Sequence[str]) -> Figure | None:
    """Draw a bar per decoder with its interval and a label, for the first metric of `metrics`
    (`SPEED` or `COST`) that any decoder has. The bar of a value of fewer than three prompts is
    hatched, and its label says how many."""
    if not (known := known_of(summary.frame, metrics)):
        return None
    axis, label = BARS[metric := known[0]]
    frame = summary.frame.dropna(subset=metric)
    figure = style.new_figure(1.1 + 0.42 * len(frame))
    axes = figure.add_subplot()
    marks = style.decoder_marks(list(summary.frame.index))
    colours = [marks[name].colour for name in frame.index]
    error = style.reach(frame, metric)
    look: dict[str, Any] = {"error_kw": {"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3}}
    drawn = axes.barh(range(len(frame)), frame[metric], 0.62, color=colours, xerr=error, **look)
    beside = axes.get_yaxis_transform()
    for place, row in enumerate(frame.to_dict("records")):
        text, value = label.format_map(row), interval_of(row, metric)
        if value and value.few:
            text += f" (n = {value.prompts})"
            drawn[place].set(fill=False, hatch="///", edgecolor=colours[place])
        axes.text(1.01, place, text, va="center", fontsize=9, transform=beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.03 * max(1, (frame[metric] + np.nan_to_num(error[1])).max()))
    axes.set_xlabel(axis.format(costs=summary.facts.costs))
    style.name_rows(axes, list(frame.index))
    return figure


@style.styled
def acceptance_by_position(summary: Summary) -> Figure | None:
    """Draw, for each k, the share of steps that accepted k draft tokens or more: of all steps,
    and of the steps that reached position k. A line per decoder; None if no position was reached
    by `FEWEST_STEPS` steps."""
    figure = style.new_figure(3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for name, mark in style.decoder_marks(list(summary.frame.index)).items():
        row: Any = summary.frame.loc[name]
        if known := sum(steps >= FEWEST_STEPS for steps in row["reached_per_position"]):
            for axes, metric in zip(panels, POSITIONS, strict=True):
                axes.errorbar(range(1, known + 1), row[metric][:known], label=name, **mark.points())
    if not panels[0].lines:
        return None
    for axes, title in zip(panels, POSITIONS.values(), strict=True):
        style.as_percent(axes)
        axes.set(ylim=(0, 1.02), xlabel="position in the draft", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("steps that accepted it")
    style.legend_above(figure)
    return figure


@style.styled
def source_shares(summary: Summary) -> Figure | None:
    """Draw the shares of new tokens by source; None if no engine reports sources."""
    rows = summary.frame["tokens_by_source"].items()
    counts = {name: row for name, row in rows if row and set(row) - {"unknown"}}
    if not counts:
        return None
    frame = pd.DataFrame.from_dict(counts, orient="index").fillna(0)
    frame = frame[sorted(frame, key=[*style.SOURCES, *frame].index)]
    shares = frame.div(frame.sum(axis=1), axis=0)
    marks = [style.SOURCES.get(str(name), style.SOURCES["unknown"])[0] for name in shares]
    figure = style.new_figure(1.3 + 0.42 * len(shares))
    axes: Any = figure.add_subplot()
    look: dict = {"width": 0.66, "edgecolor": "white", "linewidth": 0.5, "legend": False}
    shares.plot.barh(stacked=True, ax=axes, color=[mark.colour for mark in marks], **look)
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for mark, (_, widths), bars in zip(marks, shares.items(), axes.containers, strict=True):
        for bar in bars:
            bar.set_hatch(mark.hatch)
        texts = (100 * widths).map("{:.0f}".format).where(widths > 0.07, "")
        for text in axes.bar_label(bars, texts, label_type="center", fontsize=9, color="#000000"):
            text.set_bbox(box if text.get_text() else None)
    axes.set(xlim=(0, 1), ylabel="")
    style.name_rows(axes, list(shares.index))
    style.as_percent(axes, "x")
    style.legend_above(figure)
    return figure


@style.styled
def sweep_lines(settings: Sequence[Setting], summaries: Sequence[Summary]) -> Figure | None:
    """Draw runs against one or two settings; `settings[n].values[i]` is the value in
    `summaries[i]`.

    With one setting, there is a panel for speedup and one for cost; with two, a panel of the first
    of these metrics for each value of the second setting. Each decoder has a line; one that lacks
    the first setting is a horizontal line, its mean. Numbers are drawn to scale, other values in
    their order. None with fewer than two values.
    """
    along, *rest = settings
    frame, shown = _all_runs(summaries)
    if len(set(map(str, along.values))) < 2 or not shown:
        return None
    panels = [(metric, _title(metric), list(range(len(summaries)))) for metric in shown]
    if rest:
        name, values, _ = rest[0]
        panels = [
            (shown[0], f"{name} = {value}", [n for n, own in enumerate(values) if own == value])
            for value in sorted(set(values), key=list(values).index)
        ]
    columns = min(len(panels), PANELS_PER_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = style.new_figure(0.9 + 2.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=bool(rest)).ravel()
    for axes, (metric, title, members) in zip(grid, panels, strict=False):
        _draw_sweep(axes, metric, along, frame[frame.index.isin(members, level="run")])
        axes.set(xlabel=along.name, title=title)
        if metric in COST:
            axes.set_ylim(bottom=0)
    for axes in grid[len(panels) :]:
        axes.remove()
    if rest:
        figure.supylabel(_title(shown[0]), fontsize=10)
    style.legend_above(figure)
    return figure


def _draw_sweep(axes: Axes, metric: str, along: Setting, frame: Any) -> None:
    """Draw a metric against a setting: a line per decoder, for the runs in `frame`."""
    numeric = all(isinstance(value, int | float) for value in along.values)
    ticks = sorted(set(along.values)) if numeric else list(dict.fromkeys(along.values))
    marks = style.decoder_marks(list(frame.index.unique("decoder")))
    parts = [member.split(".") for member in along.members]
    varied = {part[1] for part in parts} if all(p[0] == "decoder" for p in parts) else set()
    for number, (name, mark) in enumerate(marks.items()):
        line = frame.xs(name, level="decoder").dropna(subset=metric)
        if varied and name not in varied:
            axes.axhline(line[metric].mean(), color=mark.colour, linestyle=mark.line, label=name)
            continue
        values = [along.values[run] for run in line.index]
        aside = 0 if numeric else 0.6 * ((number + 0.5) / len(marks) - 0.5)
        at = np.array(values if numeric else [ticks.index(value) for value in values], float)
        order, style_of_line = np.argsort(at), {} if numeric else {"linestyle": "none"}
        look = mark.points(label=name, yerr=style.reach(line, metric)[:, order], **style_of_line)
        axes.errorbar(at[order] + aside, line[metric].iloc[order], **look)
    slant: dict = {} if numeric else {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(ticks if numeric else range(len(ticks)), [str(tick) for tick in ticks], **slant)
    axes.grid(axis="y")


@style.styled
def batch_lines(summaries: Sequence[Summary]) -> Figure | None:
    """Draw speedup over greedy against batch size, and tokens/s of all sequences against
    tokens/s of each. In the second panel, the highest point of a batch size is labelled. None
    with fewer than two batch sizes, or without times."""
    order = sorted(summaries, key=lambda summary: summary.facts.batch_size)
    sizes = [summary.facts.batch_size for summary in order]
    frame, shown = _all_runs(order)
    if len(set(sizes)) < 2 or not shown or frame["output_throughput"].isna().all():
        return None
    users = frame["user_throughput"].fillna(frame["output_throughput"])
    figure = style.new_figure(3.9)
    left, right = figure.subplots(1, 2)
    _draw_sweep(left, shown[0], Setting("batch size", sizes), frame)
    for name, mark in style.decoder_marks(list(frame.index.unique("decoder"))).items():
        across, up = (own.xs(name, level="decoder") for own in (users, frame["output_throughput"]))
        right.plot(across, up, color=mark.colour, marker=mark.marker, linestyle=mark.line)
    for run, throughput in frame["output_throughput"].unstack().dropna(how="all").iterrows():
        beside: Any = {"xytext": (5, 4), "textcoords": "offset points", "fontsize": 8.5}
        best = throughput.idxmax()
        place = users[run, best], throughput[best]
        right.annotate(str(sizes[run]), place, color=style.MUTED, **beside)
    left.axhline(1, color=style.INK, linewidth=0.8, linestyle=":")
    left.set_xscale("log", base=2)
    left.set_xticks(sorted(set(sizes)), [str(size) for size in sorted(set(sizes))])
    left.minorticks_off()
    left.set(xlabel="batch size", title=f"{_title(shown[0])}\nat the same batch size")
    right.set(xlabel="tokens/s of each sequence", title="tokens/s of all sequences", ylim=(0, None))
    right.set_xlim(left=0)
    right.grid(axis="y")
    style.legend_above(figure)
    return figure


def _title(metric: str) -> str:
    """Return a panel's title: the metric's heading, and which direction is better."""
    return f"{METRICS[metric].heading} ({METRICS[metric].better} is better)"


def _all_runs(summaries: Sequence[Summary]) -> tuple[Any, list[str]]:
    """Return the rows of all runs, indexed by run number and decoder; and the metrics to draw,
    the first of `SPEED` and the first of `COST` that any decoder has."""
    frames = dict(enumerate(summary.frame for summary in summaries))
    frame: Any = pd.concat(frames, names=["run", "decoder"])
    return frame, [*known_of(frame, SPEED)[:1], *known_of(frame, COST)[:1]]


def known_of(frame: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """Return the metrics with a value for at least one decoder, in order."""
    return [metric for metric in metrics if frame[metric].notna().any()]
