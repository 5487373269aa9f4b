"""What a model call costs, and where the time of a token and of a step goes."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.marks import BLUE, GREY, MARKERS, ORANGE, OTHERS, RED, Mark
from ouroboros.bench.report.summary import Summary

PHASES = {
    "draft": Mark(ORANGE, hatch="//"),
    "verify": Mark(BLUE),
    "host": Mark(GREY, hatch=".."),
    "not separated": Mark("#c9c9c9", hatch="xx"),
}


@style.styled
def time_shares(summary: Summary) -> Figure | None:
    """Draw milliseconds per new token by phase: draft model, target, host.

    None if no decoder of this engine was timed.
    """
    frame = summary.frame.dropna(subset=["verify_share", "output_throughput"])
    if not len(frame):
        return None
    total_ms = 1e3 / frame["output_throughput"]
    shares = frame[["draft_share", "verify_share", "host_share"]].set_axis(list(PHASES)[:3], axis=1)
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
    labels = (
        steps["step_ms"].map("{:.1f} ms for ".format)
        + steps["tokens_per_step"].map("{:.2f} tokens".format)
    ).tolist()
    figure = style.stacked_bars(parts.dropna(axis=1, how="all").fillna(0.0), PHASES, labels)
    axes = figure.axes[0]
    rows = [place + 0.41 for place in range(len(steps))]
    axes.barh(rows, steps["wait_ms"].fillna(0.0), 0.1, color=RED)
    axes.set_xlabel("milliseconds per step, prefill left out; thin: of which wait for results")
    return figure


@style.styled
def verify_cost(calls: pd.DataFrame) -> Figure:
    """Draw milliseconds per call over nodes scored: a panel per model, a line per context.

    `calls` is `Profile.calls`.
    """
    figure = style.new_figure(3.9)
    grid = style.panels(figure, calls["model"].nunique())
    for axes, (model, own) in zip(grid, calls.groupby("model", sort=False), strict=True):
        for index, (context, line) in enumerate(own.groupby("context", sort=False)):
            look = Mark(OTHERS[index % len(OTHERS)], MARKERS[index % len(MARKERS)]).points()
            look |= {"yerr": line["spread_ms"].fillna(0.0), "label": f"{context} tokens"}
            axes.errorbar(line["nodes"], line["ms"], **look)
        last = own.iloc[-1]
        if pd.notna(last["floor_ms"]):
            label = f"floor at {last['context']} tokens"
            axes.axhline(
                last["floor_ms"], color=style.INK, linestyle="--", linewidth=1, label=label
            )
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
