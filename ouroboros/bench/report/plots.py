"""Plots of runs: each function returns a figure, or None if there is nothing to draw.

All plots share one style, are readable at 900 pixels, and never distinguish by colour alone. They
have no title: a report adds captions, and `style.with_title` adds a title to a separate plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ouroboros.bench.metrics.intervals import wilson
from ouroboros.bench.metrics.metrics import METRICS, REAL_TEXT
from ouroboros.bench.report import style
from ouroboros.bench.report.summary import Summary
from ouroboros.bench.report.tables import cell

SPEEDUP = "speedup over greedy on the same engine (time per token, prefill included)"
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
"""Positions that fewer steps reached are left out, because they are noise."""
MOST_PANELS = 3
PHASES = {
    "draft": style.Mark(style.ORANGE, hatch="//"),
    "verify": style.Mark(style.BLUE),
    "host": style.Mark(style.GREY, hatch=".."),
    "not separated": style.Mark("#c9c9c9", hatch="xx"),
}


def error_bars(summaries: Iterable[Summary]) -> str:
    """Return a note on error bars if the runs have any (they need at least two prompts)."""
    known = [one.frame.filter(regex=r"\.low$").notna().any(axis=None) for one in summaries]
    return " Error bars: 95 % bootstrap over prompts." if any(known) else ""


def note(summary: Summary) -> str:
    """Return the small print below a run's bars: host, versions, error bars, repetition."""
    text = f"{summary.facts.footnote}.{error_bars([summary])} Grey: greedy and other engines (hf_)."
    repetition = summary.frame["repetition_rate"].dropna()
    if len(repetition):
        text += f" Repetition of {repetition.index[0]}'s text: {repetition.iloc[0]:.0%}"
        text += " (large models: {:.0%} to {:.0%}).".format(*REAL_TEXT)
    return text


@style.styled
def bars(summary: Summary, metrics: Sequence[str]) -> Figure | None:
    """Draw a bar per decoder with its interval, and a label at the right of the plot.

    Shows the first available one of `metrics` (`SPEED` or `COST`); None if there is none. A speedup
    needs greedy; a predicted speedup and a cost need the costs of calls.
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
    ends = {"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3}
    axes.barh(range(len(frame)), frame[metric], 0.62, color=colours, xerr=error, error_kw=ends)
    beside = axes.get_yaxis_transform()
    for place, row in enumerate(frame.to_dict("records")):
        axes.text(1.01, place, label.format_map(row), va="center", fontsize=9.5, transform=beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.03 * max(1, (frame[metric] + np.nan_to_num(error[1])).max()))
    axes.set_xlabel(axis.format(costs=summary.facts.costs))
    style.name_rows(axes, list(frame.index))
    return figure


@style.styled
def acceptance_histograms(summary: Summary) -> Figure | None:
    """Draw the share of steps by accepted draft tokens, a panel per decoder, on the same scale.

    None if no decoder drafts.
    """
    counts = _filled(summary, "acceptance_histogram")
    found = {name: steps for name, steps in counts.items() if any(map(int, steps))}
    if not found:
        return None
    marks = style.decoder_marks(list(summary.frame.index))
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
    """Draw the share of steps that accepted k draft tokens among those that drafted k or more.

    A line per decoder; None if no position was reached by `FEWEST_STEPS` steps.
    """
    figure = style.new_figure(3.9)
    axes = figure.add_subplot()
    for name, mark in style.decoder_marks(list(summary.frame.index)).items():
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
    """Draw the shares of new tokens by source; None if no engine reports it."""
    rows = _filled(summary, "tokens_by_source").items()
    counts = {name: row for name, row in rows if set(row) - {"unknown"}}
    if not counts:
        return None
    frame = pd.DataFrame.from_dict(counts, orient="index").fillna(0)
    frame = frame[sorted(frame, key=[*style.SOURCES, *frame].index)]
    marks = {name: style.SOURCES.get(name, style.SOURCES["unknown"])[0] for name in map(str, frame)}
    figure = style.stacked_bars(frame.div(frame.sum(axis=1), axis=0), marks)
    figure.axes[0].set_xlim(0, 1)
    style.as_percent(figure.axes[0], "x")
    return figure


def reliability(summary: Summary) -> Figure | None:
    """Draw estimated against actual acceptance of tree nodes; None if no decoder has estimates."""
    trees = _filled(summary, "trees").items()
    found = [(name, one["calibration"]) for name, one in trees if one["calibration"]]
    marks = style.decoder_marks(list(summary.frame.index))
    return _calibration(dict(found[:MOST_PANELS]), marks) if found else None


def fitted_weights(about: Mapping) -> Figure:
    """Draw the calibration of fitted weights (`Weights.about`): actual against predicted frequency.

    The first panel shows the estimator with phrase features only, the second the estimator that
    also has the draft model's features.
    """
    panels = {"phrases alone": about["index"], "with the draft model": about["draft"]}
    return _calibration(
        panels, dict(zip(panels, (style.Mark(style.BLUE), style.Mark(style.RED)), strict=True))
    )


@style.styled
def _calibration(panels: Mapping[str, Mapping], marks: Mapping[str, style.Mark]) -> Figure:
    """Draw a panel per calibration: actual against estimated shares, above the bins' counts."""
    figure = style.new_figure(4.6)
    grid = figure.subplots(2, len(panels), sharex=True, squeeze=False, height_ratios=(3, 1))
    for (upper, lower), (name, one) in zip(grid.T, panels.items(), strict=True):
        bins = pd.DataFrame(one["reliability"])
        hits = (bins["came"] * bins["observations"]).round().astype(int)
        known = [wilson(*pair) for pair in zip(hits, bins["observations"], strict=True)]
        reach = [(ci.value - (ci.low or 0), (ci.high or 1) - ci.value) for ci in known]
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
    """Return a metric's non-empty values by decoder."""
    return {str(name): value for name, value in summary.frame[metric].items() if value}


@style.styled
def time_shares(summary: Summary) -> Figure | None:
    """Draw milliseconds per new token by phase: draft model, target, host.

    None if no decoder of this engine was timed.
    """
    frame = summary.frame.dropna(subset=["verify_share", "output_throughput"])
    if not len(frame):
        return None
    total_ms = 1e3 / frame["output_throughput"]
    shares = frame[["draft_share", "verify_share", "host_share"]].set_axis([*PHASES][:3], axis=1)
    labels = [f"{ms:.1f} ms" for ms in total_ms]
    figure = style.stacked_bars(shares.mul(total_ms, axis=0), PHASES, labels)
    figure.axes[0].set_xlabel("milliseconds per new token, prefill included")
    return figure


@style.styled
def step_time(steps: pd.DataFrame) -> Figure | None:
    """Draw milliseconds per step by phase and, as a thin bar, the wait for the device.

    `steps` is `Profile.steps`; None if no decoder had steps.
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

    `calls` is `Profile.calls`.
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
def sweep_lines(setting: str, values: Sequence, summaries: Sequence[Summary]) -> Figure | None:
    """Draw speedup and cost against one setting, with a mark per decoder.

    `values[i]` is the setting in `summaries[i]`. Numbers are drawn to scale and joined by lines;
    words keep their order. None with fewer than two values.
    """
    numeric = all(isinstance(value, int | float) for value in values)
    order = np.argsort(values) if numeric else range(len(values))
    values = [values[index] for index in order]
    frame, shown = _all_runs([summaries[index] for index in order])
    if len(set(map(str, values))) < 2 or not shown:
        return None
    places = np.array(values if numeric else range(len(values)), float)
    marks = style.decoder_marks(list(frame.index.unique("decoder")))
    figure = style.new_figure(3.9)
    for axes, metric in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for index, (name, mark) in enumerate(marks.items()):
            line = frame.xs(name, level="decoder").dropna(subset=metric)
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
    """Draw speedup over greedy against batch size, and the throughput of all sequences against
    that of each user.

    Each decoder has a line; in the second panel its points are labelled with the batch size. None
    with fewer than two batch sizes.
    """
    order = sorted(summaries, key=lambda summary: summary.facts.batch_size)
    sizes = [summary.facts.batch_size for summary in order]
    frame, shown = _all_runs(order)
    if len(set(sizes)) < 2 or not shown:
        return None
    metric = shown[0]
    users = frame["user_throughput"].fillna(frame["output_throughput"])
    figure = style.new_figure(4.4)
    left, right = figure.subplots(1, 2)
    for name, mark in style.decoder_marks(list(frame.index.unique("decoder"))).items():
        own = frame.xs(name, level="decoder")
        look = mark.points(label=name, yerr=style.reach(own, metric))
        left.errorbar([sizes[run] for run in own.index], own[metric], **look)
        across, up = users.xs(name, level="decoder"), own["output_throughput"]
        right.plot(across, up, color=mark.colour, marker=mark.marker, linestyle=mark.line)
        for run in own.index:
            beside: Any = {"xytext": (4, 3), "textcoords": "offset points", "fontsize": 7.5}
            right.annotate(str(sizes[run]), (across[run], up[run]), color=style.MUTED, **beside)
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


@style.styled
def sweep_map(
    settings: tuple[str, str], values: Sequence[tuple], summaries: Sequence[Summary], decoder: str
) -> Figure | None:
    """Draw heat maps of speedup and cost of one decoder over two settings (across, down), with a
    frame around the best cell.

    None if a setting has fewer than two values.
    """
    orders = []
    for side in zip(*values, strict=True):
        numeric = all(isinstance(value, int | float) for value in side)
        orders.append(list(dict.fromkeys(map(str, sorted(side) if numeric else side))))
    frame, shown = _all_runs(summaries, decoder)
    if min(map(len, orders)) < 2 or not shown:
        return None
    cells = [tuple(map(str, values[run][::-1])) for run, _ in frame.index]
    frame.index = pd.MultiIndex.from_tuples(cells)
    figure = style.new_figure(1.9 + 0.5 * len(orders[1]))
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, metric in zip(panels, shown, strict=True):
        table = frame[metric].unstack().reindex(index=orders[1], columns=orders[0])
        grid, entry, less = table.to_numpy(float), METRICS[metric], metric in COST
        at = np.unravel_index((np.nanargmin if less else np.nanargmax)(grid), grid.shape)
        best = frame.loc[(orders[1][at[0]], orders[0][at[1]])]
        value, low, high = (best[metric + end] for end in ("", ".low", ".high"))
        middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
        half = np.nanmax([np.nanmax(grid) - np.nanmin(grid), high - low]) / 2
        limits = {"vmin": middle - half, "vmax": middle + half, "aspect": "auto"}
        axes.imshow(grid, cmap="cividis_r" if less else "cividis", **limits)
        for (y, x), one in np.ndenumerate(grid):
            if not np.isnan(one):
                ink = "#000000" if (one > middle) != less else "#ffffff"
                axes.text(x, y, cell(entry, {metric: one}), ha="center", va="center", color=ink)
            if (y, x) == at or one == value or low <= one <= high:
                look: Any = {"linewidth": 2.5, "linestyle": "-" if (y, x) == at else "--"}
                look |= {"fill": False, "edgecolor": style.RED}
                axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, **look))
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(range(len(orders[0])), orders[0])
        axes.set_yticks(range(len(orders[1])), orders[1])
        axes.set_title(f"{decoder}: {_title(metric)}\nbest: {cell(entry, best)}")
        axes.set_xlabel(settings[0])
    figure.axes[0].set_ylabel(settings[1])
    return figure


def _title(metric: str) -> str:
    """Return a panel's title: the metric's heading, and which direction is better."""
    return f"{METRICS[metric].heading} ({METRICS[metric].better} is better)"


def _all_runs(summaries: Sequence[Summary], decoder: str = "") -> tuple[Any, list[str]]:
    """Return one frame of all runs (of one decoder), indexed by run number and decoder, and its
    metrics of speed and cost."""
    frames = dict(enumerate(summary.frame for summary in summaries))
    frame = pd.concat(frames, names=["run", "decoder"])
    frame = frame[frame.index.isin([decoder], level="decoder")] if decoder else frame
    return frame, [*known_of(frame, SPEED)[:1], *known_of(frame, COST)[:1]]


def known_of(frame: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """Return the metrics that at least one decoder has."""
    return [metric for metric in metrics if frame[metric].notna().any()]
