"""A sweep: curves over one swept setting, a map over two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ouroboros.bench.plots import style
from ouroboros.bench.plots.speedups import machines, spread
from ouroboros.bench.plots.style import decoder_marks, foot, head, new_figure


def sweep_curves(setting: str, values: Sequence, summaries: Sequence[Mapping]) -> Figure | None:
    """Latency speedup and calls per token over one setting, a line per decoder.

    `values` are those of the runs, in the same order; numbers are placed to scale, words in turn.
    """
    if len(set(map(str, values))) < 2:
        return None
    order = sorted(range(len(values)), key=lambda i: _place(values[i]))
    values, summaries = [values[i] for i in order], [summaries[i] for i in order]
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    places = [float(v) for v in values] if numeric else list(range(len(values)))
    names = list(dict.fromkeys(name for s in summaries for name in s["decoders"]))
    with style.looks():
        figure = new_figure(4.4)
        left, right = figure.subplots(1, 2)
        for name in names:
            _curves(left, right, name, names, places, summaries)
        for axes, label in (
            (left, "speedup over greedy"),
            (right, "calls per token (fewer: better)"),
        ):
            axes.set_xlabel(setting)
            axes.set_xticks(places, [str(v) for v in values])
            axes.grid(axis="y")
            head(axes, label)
        right.set_ylim(bottom=0)
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=min(6, len(names)))
        foot(
            figure,
            f"{len(summaries)} runs, the first: {summaries[0]['title']}. "
            "Whiskers: 95 % bootstrap over prompts. "
            f"Calls: (target + 0.176 x draft calls) / new tokens. {machines(summaries)}",
        )
    return figure


def sweep_map(
    settings: tuple[str, str], values: Sequence[tuple], summaries: Sequence[Mapping], decoder: str
) -> Figure | None:
    """Latency speedup and calls per token of one decoder over two settings, as two heat maps."""
    across = sorted({v[0] for v in values}, key=_place)
    down = sorted({v[1] for v in values}, key=_place)
    rows = [s["decoders"].get(decoder) for s in summaries]
    if len(across) < 2 or len(down) < 2 or not any(r and r["latency_speedup"] for r in rows):
        return None
    speed = np.full((len(down), len(across)), np.nan)
    calls = speed.copy()
    for (x, y), row in zip(values, rows, strict=True):
        place = down.index(y), across.index(x)
        if row and row["latency_speedup"]:
            speed[place] = row["latency_speedup"]["value"]
        if row and row["calls_per_token"] is not None:
            calls[place] = row["calls_per_token"]
    with style.looks():
        figure = new_figure(2.3 + 0.5 * len(down))
        left, right = figure.subplots(1, 2, sharey=True)
        _map(left, speed, "{:.2f}x")
        _map(right, calls, "{:.3f}", less_is_better=True)
        for axes, label in ((left, f"{decoder}: speedup over greedy"), (right, "calls per token")):
            axes.set_xticks(range(len(across)), [str(v) for v in across])
            axes.set_yticks(range(len(down)), [str(v) for v in down])
            axes.set_xlabel(settings[0])
            head(axes, label)
        left.set_ylabel(settings[1])
        first = f"{len(summaries)} runs, the first: {summaries[0]['title']}"
        foot(figure, f"{first}. Lighter: better. {machines(summaries)}")
    return figure


def _curves(
    left: Axes,
    right: Axes,
    name: str,
    names: Sequence[str],
    places: Sequence[float],
    summaries: Sequence[Mapping],
) -> None:
    mark = decoder_marks(names)[name]
    have = [
        (p, s["decoders"][name])
        for p, s in zip(places, summaries, strict=True)
        if name in s["decoders"]
    ]
    fast = [(p, row["latency_speedup"]) for p, row in have if row["latency_speedup"]]
    look: dict = {
        "color": mark.colour,
        "marker": mark.marker,
        "linestyle": mark.line,
        "markersize": 5,
    }
    if fast:
        found = [f for _, f in fast]
        left.errorbar(
            [p for p, _ in fast],
            [f["value"] for f in found],
            yerr=spread(found),
            elinewidth=1,
            capsize=3,
            **look,
        )
    called = [(p, row["calls_per_token"]) for p, row in have if row["calls_per_token"] is not None]
    right.plot([p for p, _ in called], [c for _, c in called], label=name, **look)


def _map(axes: Axes, table: np.ndarray, form: str, *, less_is_better: bool = False) -> None:
    colours = "cividis_r" if less_is_better else "cividis"
    axes.imshow(table, cmap=colours, aspect="auto")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (y, x), value in np.ndenumerate(table):
        if not np.isnan(value):
            light = (value > middle) != less_is_better
            ink = "#000000" if light else "#ffffff"
            axes.text(x, y, form.format(value), ha="center", va="center", color=ink)


def _place(value) -> tuple:
    """Numbers by size, then words by name, then what is missing."""
    if isinstance(value, (int, float)):
        return 0, value, ""
    return (2, 0, "") if value is None else (1, 0, str(value))
