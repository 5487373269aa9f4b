"""Plots of runs: each function returns a figure, or None if there is nothing to draw.

All plots share one style, are readable at 900 pixels, and never distinguish by colour alone. They
have no title: a report adds captions, and `style.with_title` adds a title to a separate plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.metrics.metrics import METRICS, REAL_TEXT
from ouroboros.bench.report import style
from ouroboros.bench.report.summary import Summary, interval_of

SPEEDUP = "speedup over greedy (time per token, prefill included)"
BARS = {
    "latency_speedup": (SPEEDUP, "{latency_speedup:.2f}x · {output_throughput:.1f} tok/s"),
    "predicted_speedup": (
        "speedup over greedy, predicted with {costs}",
        "{predicted_speedup:.2f}x, predicted",
    ),
    "cost_per_token": (
        "cost per token with {costs}, in target calls of one node; lower is better",
        "{cost_per_token:.3f} · {tokens_per_target_call:.2f} tokens/target call",
    ),
    "calls_per_token": (
        "(target calls + draft cost x draft calls) / new tokens; lower is better",
        "{calls_per_token:.3f} · {tokens_per_target_call:.2f} tokens/target call",
    ),
}
"""By metric: the label of the axis and the label of each bar."""
SPEED = ("latency_speedup", "predicted_speedup")
COST = ("cost_per_token", "calls_per_token")
FEWEST_STEPS = 10
"""Positions reached by fewer steps are left out, because their shares are noise."""
POSITIONS = {
    "accepted_per_position": "of all steps",
    "acceptance_rate_per_position": "of the steps that drafted this far",
}
"""The panels of acceptance by position: metrics and titles."""
PHASES = {
    "draft": style.Mark(style.ORANGE, hatch="//"),
    "verify": style.Mark(style.BLUE),
    "host": style.Mark(style.GREY, hatch=".."),
    "not separated": style.Mark("#c9c9c9", hatch="xx"),
}


def error_bars(summaries: Iterable[Summary]) -> str:
    """Return a sentence on error bars if the runs have any (with three prompts or more), else
    ""."""
    known = [one.frame.filter(regex=r"\.low$").notna().any(axis=None) for one in summaries]
    return " Error bars: 95 % bootstrap over prompts." if any(known) else ""


def conditions(summaries: Sequence[Summary], *, intervals: bool = True) -> str:
    """Return the models, numbers of prompts and load of the runs, to end a caption; with
    `intervals`, add a sentence on error bars."""
    facts = [one.facts for one in summaries]
    models = " or ".join(dict.fromkeys(one.models for one in facts))
    prompts = " or ".join(map(str, sorted({one.prompts for one in facts})))
    busy = max(one.busy for one in facts)
    text = f" Models: {models}; {prompts} prompt{'s' * (prompts != '1')}{busy and f'; {busy}'}."
    return text + error_bars(summaries) * intervals


def note(summary: Summary) -> str:
    """Return the small print below a run's bars: host, versions, error bars, repetition."""
    text = f"{summary.facts.footnote}.{error_bars([summary])} Grey: greedy, hf_ and llama_cpp."
    repetition = summary.frame["repetition_rate"].dropna()
    if len(repetition):
        text += f" Repetition of {repetition.index[0]}'s text: {repetition.iloc[0]:.0%}"
        text += " (large models: {:.0%} to {:.0%}).".format(*REAL_TEXT)
    return text


@style.styled
def bars(summary: Summary, metrics: Sequence[str]) -> Figure | None:
    """Draw a bar per decoder with its interval; each bar has a label to the right of the plot.

    Shows the first metric of `metrics` (the tuple `SPEED` or `COST`) that any decoder has; returns
    None if there is none. A speedup needs greedy; predicted_speedup and cost_per_token need costs.
    The bar of a value of fewer than three prompts is hatched, and its label says how many.
    """
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
        axes.text(1.01, place, text, va="center", fontsize=9.5, transform=beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.03 * max(1, (frame[metric] + np.nan_to_num(error[1])).max()))
    axes.set_xlabel(axis.format(costs=summary.facts.costs))
    style.name_rows(axes, list(frame.index))
    return figure


@style.styled
def acceptance_by_position(summary: Summary) -> Figure | None:
    """Draw, for each k, the share of steps that accepted k draft tokens or more: of all steps, and
    of those that drafted k or more.

    A line per decoder; None if no position was reached by `FEWEST_STEPS` steps.
    """
    figure = style.new_figure(3.9)
    panels = figure.subplots(1, 2, sharey=True)
    for name, mark in style.decoder_marks(list(summary.frame.index)).items():
        row: Any = summary.frame.loc[name]
        if reached := sum(steps >= FEWEST_STEPS for steps in row["tries_per_position"]):
            for axes, metric in zip(panels, POSITIONS, strict=True):
                rates = row[metric][:reached]
                axes.errorbar(range(1, reached + 1), rates, label=name, **mark.points())
    if not panels[0].lines:
        return None
    for axes, title in zip(panels, POSITIONS.values(), strict=True):
        style.as_percent(axes)
        axes.set(ylim=(0, 1.02), xlabel="position in the draft", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("accepted up to here")
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
    marks = {name: style.SOURCES.get(name, style.SOURCES["unknown"])[0] for name in map(str, frame)}
    figure = style.stacked_bars(frame.div(frame.sum(axis=1), axis=0), marks)
    figure.axes[0].set_xlim(0, 1)
    style.as_percent(figure.axes[0], "x")
    return figure


@style.styled
def step_time(steps: pd.DataFrame) -> Figure | None:
    """Draw milliseconds per step by phase and, as a thin bar, the wait for the device.

    `steps` is `Profile.steps` (see `step_means`). None if no decoder had steps.
    """
    steps = steps.dropna(subset="step_ms")
    if not len(steps):
        return None
    parts = steps[["draft_ms", "verify_ms", "host_ms"]].set_axis(list(PHASES)[:3], axis=1)
    parts["not separated"] = steps["step_ms"].where(steps["verify_ms"].isna())
    pairs = zip(steps["step_ms"], steps["tokens_per_step"], strict=True)
    labels = [f"{ms:.1f} ms for {tokens:.2f} tokens" for ms, tokens in pairs]
    figure = style.stacked_bars(parts.dropna(axis=1, how="all").fillna(0.0), PHASES, labels)
    axes = figure.axes[0]
    axes.barh(np.arange(len(steps)) + 0.41, steps["wait_ms"].fillna(0.0), 0.1, color=style.RED)
    axes.set_xlabel("milliseconds per step, prefill left out; thin: of which wait for results")
    return figure


@style.styled
def verify_cost(calls: pd.DataFrame) -> Figure:
    """Draw milliseconds per call against nodes: a panel per model, a line per context length.

    `calls` is `Profile.calls` (see `call_frame`).
    """
    figure = style.new_figure(3.9)
    grid = figure.subplots(1, calls["model"].nunique(), squeeze=False)[0]
    for axes, (model, own) in zip(grid, calls.groupby("model", sort=False), strict=True):
        for index, (context, line) in enumerate(own.groupby("context", sort=False)):
            look = style.Mark(
                style.OTHERS[index % len(style.OTHERS)], style.MARKERS[index % len(style.MARKERS)]
            ).points()
            look |= {"yerr": line["spread_ms"].fillna(0.0), "label": f"{context} tokens"}
            axes.errorbar(line["nodes"], line["ms"], **look)
        last = own.iloc[-1]
        if pd.notna(last["floor_ms"]):
            look = {"color": style.INK, "linestyle": "--", "linewidth": 1}
            axes.axhline(last["floor_ms"], label=f"floor at {last['context']} tokens", **look)
        sizes = sorted(set(own["nodes"]))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.set(xlabel="nodes scored", title=model)
    grid[0].set_ylabel("milliseconds per call")
    grid[0].legend(loc="upper left", title="context")
    return figure


@style.styled
def sweep_lines(
    setting: str, values: Sequence, members: Sequence[str], summaries: Sequence[Summary]
) -> Figure | None:
    """Draw speedup and cost against one setting, with a mark per decoder.

    `values[i]` is the setting in `summaries[i]`. Numbers are drawn to scale and joined by lines;
    other values keep their order. If the setting's options, `members`, are those of some decoders,
    a dotted line is the mean of each other decoder. None with fewer than two values.
    """
    numeric = all(isinstance(value, int | float) for value in values)
    order = np.argsort(values) if numeric else range(len(values))
    values = [values[index] for index in order]
    frame, shown = _all_runs([summaries[index] for index in order])
    if len(set(map(str, values))) < 2 or not shown:
        return None
    places = np.array(values if numeric else range(len(values)), float)
    marks = style.decoder_marks(list(frame.index.unique("decoder")))
    parts = [member.split(".") for member in members]
    of_decoders = all(part[0] == "decoder" for part in parts)
    varied = {part[1] for part in parts} if of_decoders else marks.keys()
    figure = style.new_figure(3.9)
    for axes, metric in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for index, (name, mark) in enumerate(marks.items()):
            line = frame.xs(name, level="decoder").dropna(subset=metric)
            if name not in varied:
                look = mark.points(label=name, linestyle="dotted", linewidth=1)
                axes.errorbar(places[[0, -1]], [line[metric].mean()] * 2, **look)
                continue
            aside = 0 if numeric else 0.6 * ((index + 0.5) / len(marks) - 0.5)
            look = mark.points(label=name, yerr=style.reach(line, metric))
            look |= {} if numeric else {"linestyle": "none"}
            axes.errorbar(places[line.index] + aside, line[metric], **look)
        slant: dict = {} if numeric else {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(places, [str(value) for value in values], **slant)
        axes.grid(axis="y")
        axes.set(xlabel=setting, title=_title(metric))
        if metric in COST:
            axes.set_ylim(bottom=0)
    style.legend_above(figure)
    return figure


@style.styled
def batch_lines(summaries: Sequence[Summary]) -> Figure | None:
    """Draw speedup over greedy against batch size, and tokens/s of all sequences against tokens/s
    of each.

    Each decoder has a line. In the second panel, the highest point of a batch size is labelled.
    None with fewer than two batch sizes, or without times.
    """
    order = sorted(summaries, key=lambda summary: summary.facts.batch_size)
    sizes = [summary.facts.batch_size for summary in order]
    frame, shown = _all_runs(order)
    if len(set(sizes)) < 2 or not shown or frame["output_throughput"].isna().all():
        return None
    metric = shown[0]
    users = frame["user_throughput"].fillna(frame["output_throughput"])
    figure = style.new_figure(4.4)
    left, right = figure.subplots(1, 2)
    marks = style.decoder_marks(list(frame.index.unique("decoder")))
    for at, (name, mark) in enumerate(marks.items()):
        own = frame.xs(name, level="decoder")
        look = mark.points(label=name, yerr=style.reach(own, metric))
        apart = 2 ** ((at - (len(marks) - 1) / 2) / 24)  # so that error bars do not overlap
        left.errorbar([sizes[run] * apart for run in own.index], own[metric], **look)
        across, up = users.xs(name, level="decoder"), own["output_throughput"]
        right.plot(across, up, color=mark.colour, marker=mark.marker, linestyle=mark.line)
    for run, throughput in frame["output_throughput"].unstack().dropna(how="all").iterrows():
        beside: Any = {"xytext": (5, 4), "textcoords": "offset points", "fontsize": 7.5}
        best = throughput.idxmax()
        place = users[run, best], throughput[best]
        right.annotate(str(sizes[run]), place, color=style.MUTED, **beside)
    left.axhline(1, color=style.INK, linewidth=0.8, linestyle=":")
    left.set_xscale("log", base=2)
    left.set_xticks(sizes, [str(size) for size in sizes])
    left.minorticks_off()
    left.set(xlabel="batch size", title=f"{_title(metric)}\nat the same batch size")
    right.set(xlabel="tokens/s of each sequence", title="tokens/s of all sequences", ylim=(0, None))
    right.set_xlim(left=0)
    for axes in (left, right):
        axes.grid(axis="y")
    style.legend_above(figure)
    return figure


def _title(metric: str) -> str:
    """Return a panel's title: the metric's heading, and which direction is better."""
    return f"{METRICS[metric].heading} ({METRICS[metric].better} is better)"


def _all_runs(summaries: Sequence[Summary]) -> tuple[Any, list[str]]:
    """Return (frame, metrics): the rows of all runs, indexed by run number and decoder; and the
    metrics to draw, the first of `SPEED` and the first of `COST` that any decoder has."""
    frames = dict(enumerate(summary.frame for summary in summaries))
    frame: Any = pd.concat(frames, names=["run", "decoder"])
    return frame, [*known_of(frame, SPEED)[:1], *known_of(frame, COST)[:1]]


def known_of(frame: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """Return the metrics with a value for at least one decoder, in order."""
    return [metric for metric in metrics if frame[metric].notna().any()]
