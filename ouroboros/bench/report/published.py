"""Published numbers beside the measured ones: a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.report.cells import interval, number, times
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import foot, head, new_figure, whiskers


def published_frame(summary: Mapping) -> pd.DataFrame:
    """Published tokens/s and speedup over greedy beside the measured ones, and their ratio."""
    published = (summary["published"] or {}).get("tokens_per_s", {})
    return pd.DataFrame(
        [
            {
                "decoder": name,
                "published tokens/s": number(published.get(name), 1),
                "published speedup": times(_over_greedy(published, name)),
                "measured tokens/s": number(row.get("output_throughput"), 1),
                "measured speedup": interval(row.get("latency_speedup")),
                "measured / published": number(_ratio_of_ratios(summary, name), 2),
            }
            for name in dict.fromkeys([*published, *summary["decoders"]])
            for row in [summary["decoders"].get(name, {})]
        ]
        if published
        else []
    ).fillna("-")


def published_caption(summary: Mapping) -> str:
    """Return one line: where the published numbers come from, and what was measured here."""
    published = summary["published"]
    what = {"model": "", "stand-in": " (a stand-in)", "rehearsal": " (a rehearsal)"}
    return (
        f"Published: {published.get('source', 'source not given')}, on "
        f"{published.get('hardware', 'hardware not given')}. "
        f"Measured{what[summary['nature']]}: on {summary['device']}. Speedups are over greedy."
    )


def published_bars(summary: Mapping) -> Figure | None:
    """Speedup over greedy, published (hatched) above measured; None without published numbers."""
    published = (summary["published"] or {}).get("tokens_per_s", {})
    theirs = {n: r for n in published if (r := _over_greedy(published, n)) and n != "greedy"}
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
        foot(figure, f"{summary['title']}. {published_caption(summary)}")
    return figure


def _over_greedy(tokens_per_s: Mapping[str, float], name: str) -> float | None:
    """Return tokens/s of a decoder / tokens/s of greedy, None where either is not known."""
    ours, base = tokens_per_s.get(name), tokens_per_s.get(PLAIN)
    return ours / base if ours and base else None


def _ratio_of_ratios(summary: Mapping, name: str) -> float | None:
    """Return measured speedup / published speedup of a decoder."""
    published = _over_greedy((summary["published"] or {}).get("tokens_per_s", {}), name)
    measured = summary["decoders"].get(name, {}).get("latency_speedup")
    return measured["value"] / published if measured and published else None


def _bars(axes: Axes, theirs: Mapping[str, float], summary: Mapping) -> None:
    ours = {name: row["latency_speedup"] for name, row in summary["decoders"].items()}
    places = {name: place for place, name in enumerate(theirs) if ours.get(name)}
    found = [ours[name] for name in places]
    nature = summary["nature"]
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
