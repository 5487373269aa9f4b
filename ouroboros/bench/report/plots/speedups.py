"""Speedup over greedy: the bars of one run, and decoders side by side over several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.metrics.intervals import COST_RATIO
from ouroboros.bench.metrics.metrics import REAL_TEXT, of_real_text
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.style import (
    decoder_marks,
    foot,
    head,
    is_peer,
    new_figure,
    title,
    whisker_words,
    whiskers,
)

AXIS = "speedup over greedy on the same engine (time per token, prefill included)"
CALLS_AXIS = "calls per token: (target + {cost} x draft calls) / new tokens; fewer is better"
COST_AXIS = "cost per token by {costs}, in target calls of one node; less is better"
PREDICTED_AXIS = "speedup over greedy, predicted by {costs}"


def speedup_bars(summary: Mapping) -> Figure | None:
    """Latency speedup over greedy, one bar per decoder in the config's order, with intervals; the
    predicted one where nothing was timed.

    None where no decoder has a speedup (no greedy run to compare with).
    """
    if summary["timed"]:
        form = "{value:.2f}x · {output_throughput:.1f} tok/s"
        return _run_bars(summary, "latency_speedup", AXIS, form)
    return _run_bars(summary, "predicted_speedup", PREDICTED_AXIS, "{value:.2f}x, predicted")


def calls_bars(summary: Mapping) -> Figure | None:
    """Cost per token by the summary's costs, one bar per decoder, with intervals; without costs
    calls per token at the published ratio, which no machine changes.

    None where nothing was measured.
    """
    form = "{value:.3f} · {tokens_per_target_call:.2f} tokens/target call"
    if summary["costs"]:
        return _run_bars(summary, "cost_per_token", COST_AXIS, form)
    return _run_bars(summary, "calls_per_token", CALLS_AXIS.format(cost=cost_text([summary])), form)


def comparison_dots(summaries: Mapping[str, Mapping]) -> Figure | None:
    """Latency speedup with its interval: a group of rows per run, a mark per decoder.

    None with fewer than two runs that have speedups.
    """
    runs = {
        label: {n: r for n, r in s["decoders"].items() if r["latency_speedup"] and n != "greedy"}
        for label, s in summaries.items()
    }
    runs = {label: rows for label, rows in runs.items() if rows}
    if len(runs) < 2:
        return None
    names = list(dict.fromkeys(name for rows in runs.values() for name in rows))
    shown = [summaries[label] for label in runs]
    with style.looks():
        figure = new_figure(1.7 + len(runs) * (0.25 + 0.17 * len(names)))
        axes = figure.add_subplot()
        _dots(axes, runs, names)
        head(axes, " · ".join(["Speedup over greedy, run by run", *shared(shown)]))
        axes.set_xlabel(AXIS)
        figure.legend(loc="outside upper right", ncols=min(len(names), 5), fontsize=9)
        found = [row["latency_speedup"] for rows in runs.values() for row in rows.values()]
        foot(figure, whisker_words(found) + machines(shown))
    return figure


def cost_text(summaries) -> str:
    """Return the weight of a draft call in calls/token, or words where the runs' pairs differ."""
    costs = {f"{COST_RATIO if (c := one['draft_cost']) is None else c:.3g}" for one in summaries}
    return costs.pop() if len(costs) == 1 else "the pair's cost"


def shared(summaries) -> list[str]:
    """Return what the titles of all summaries say alike: model, dtype, batch size, machine."""
    parts = [summary["title"].split(" · ") for summary in summaries]
    return [part for part in parts[0] if all(part in others for others in parts)]


def machines(summaries) -> str:
    """Return the machines of some summaries in one line."""
    return "Measured on " + "; ".join(dict.fromkeys(s["device"] for s in summaries)) + "."


def _run_bars(summary: Mapping, what: str, axis: str, form: str) -> Figure | None:
    """One bar for each decoder that has `what`; `form` makes its label from the value and the
    decoder's row. None where no decoder has it."""
    rows = {name: row for name, row in summary["decoders"].items() if row[what]}
    if not rows:
        return None
    with style.looks():
        figure = new_figure(1.9 + 0.42 * len(rows))
        axes = figure.add_subplot()
        found = {name: row[what] for name, row in rows.items()}
        labels = [form.format(**{**row, "value": row[what]["value"]}) for row in rows.values()]
        _bars(axes, found, labels)
        axes.set_xlabel(axis.format(costs=summary["costs"]))
        title(figure, summary["title"])
        foot(figure, _footnote(summary, rows, what))
    return figure


def _bars(axes: Axes, found: Mapping[str, Mapping], labels: Sequence[str]) -> None:
    """Draw a value with its interval for each name, and a column of labels beside the plot, where
    no whisker and no line can cross them."""
    values, reach = [f["value"] for f in found.values()], whiskers(list(found.values()))
    marks = decoder_marks(list(found))
    places = range(len(found))
    axes.barh(
        places,
        values,
        height=0.62,
        color=[marks[name].colour for name in found],
        xerr=reach,
        error_kw={"ecolor": style.INK, "elinewidth": 1.2, "capsize": 3},
    )
    end = max(np.asarray(values) + np.nan_to_num(reach[1]))
    beside = axes.get_yaxis_transform()
    for place, label in zip(places, labels, strict=True):
        axes.text(1.01, place, label, va="center", fontsize=9.5, transform=beside)
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, list(found), fontsize=10.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.03 * max(end, 1))
    axes.tick_params(axis="y", length=0)


def _dots(axes: Axes, runs: Mapping[str, Mapping], names: Sequence[str]) -> None:
    marks = decoder_marks(names)
    for index, name in enumerate(names):
        have = [place for place, rows in enumerate(runs.values()) if name in rows]
        found = [rows[name]["latency_speedup"] for rows in runs.values() if name in rows]
        offset = 0.7 * ((index + 0.5) / len(names) - 0.5)
        axes.errorbar(
            [f["value"] for f in found],
            [place + offset for place in have],
            xerr=whiskers(found),
            fmt=marks[name].marker,
            color=marks[name].colour,
            markersize=6,
            elinewidth=1.2,
            capsize=2.5,
            label=name,
        )
    axes.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(runs)), list(runs))
    for edge in range(1, len(runs)):
        axes.axhline(edge - 0.5, color=style.GRID, linewidth=0.6)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _footnote(summary: Mapping, rows: Mapping[str, Mapping], what: str) -> str:
    peers = " and transformers' own generation (hf_)" if any(map(is_peer, rows)) else ""
    lacking = "Incomplete run. " if summary["incomplete"] else ""
    plain = "greedy" if "greedy" in rows else next(iter(rows))
    repeats = _repetition(plain, rows[plain]["repetition_rate"])
    words = whisker_words([row[what] for row in rows.values()])
    return f"{lacking}{summary['footnote']}. {words}Grey: greedy{peers}.{repeats}"


def _repetition(name: str, rate: float | None) -> str:
    if rate is None:
        return ""
    low, high = (f"{100 * one:.0f}" for one in REAL_TEXT)
    return (
        f" Repetition of {name}'s text: {100 * rate:.0f} %, {of_real_text(rate)} that of large "
        f"models' own ({low} to {high} %)."
    )
