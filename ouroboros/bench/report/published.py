"""A plot of published numbers beside the measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import foot, head, new_figure, whiskers
from ouroboros.bench.report.summary import Summary, interval_of
from ouroboros.bench.report.tables import published_caption, published_speedup


def published_bars(summary: Summary) -> Figure | None:
    """Speedup over greedy, published (hatched) above measured; None without published numbers."""
    published = (summary.facts.published or {}).get("tokens_per_s", {})
    theirs = {n: r for n in published if (r := published_speedup(published, n)) and n != PLAIN}
    if not theirs:
        return None
    with style.looks():
        figure = new_figure(1.9 + 0.6 * len(theirs))
        axes = figure.add_subplot()
        _bars(axes, theirs, summary)
        axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(theirs)), list(theirs), fontsize=10.5)
        axes.invert_yaxis()
        axes.margins(x=0.08)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("speedup over greedy on the same machine (prefill included)")
        head(axes, "Published and measured")
        figure.legend(loc="outside upper right", ncols=2, fontsize=9)
        foot(figure, f"{summary.facts.title}. {published_caption(summary.facts)}")
    return figure


def _bars(axes: Axes, theirs: Mapping[str, float], summary: Summary) -> None:
    ours = {n: interval_of(row, "latency_speedup") for n, row in summary.frame.iterrows()}
    places = {name: place for place, name in enumerate(theirs) if ours.get(name)}
    found = [asdict(one) for name in places if (one := ours[name])]
    nature = summary.facts.nature
    upper = axes.barh(
        [place - 0.2 for place in range(len(theirs))],
        list(theirs.values()),
        height=0.36,
        facecolor="none",
        edgecolor=style.MUTED,
        hatch="///",
        label="published",
    )
    axes.bar_label(upper, fmt="%.2fx", padding=4, fontsize=9)
    lower = axes.barh(
        [place + 0.2 for place in places.values()],
        [one["value"] for one in found],
        height=0.36,
        color=style.RED,
        xerr=np.nan_to_num(whiskers(found)) if found else None,  # NaN would hide the label
        error_kw={"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3},
        label="measured" if nature == "model" else f"measured, a {nature}",
    )
    axes.bar_label(lower, fmt="%.2fx", padding=4, fontsize=9)
