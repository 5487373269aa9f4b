"""A sweep: curves over one swept setting, a map over two. Counts alone where nothing was timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.speedups import cost_text, machines
from ouroboros.bench.report.plots.style import (
    decoder_marks,
    foot,
    head,
    new_figure,
    whisker_words,
    whiskers,
)


@dataclass(frozen=True)
class Measure:
    """What a panel shows: a value with its interval for each decoder's row, None if unknown."""

    label: str
    form: str
    found: Callable[[Mapping], Mapping | None]
    less_is_better: bool = False

    def of(self, summary: Mapping, decoder: str) -> Mapping | None:
        """Return a decoder's value and interval in a summary."""
        row = summary["decoders"].get(decoder)
        return row and self.found(row)


MEASURES = (
    (
        Measure("speedup over greedy", "{:.2f}x", lambda row: row["latency_speedup"]),
        Measure("predicted speedup over greedy", "{:.2f}x", lambda row: row["predicted_speedup"]),
    ),
    (
        Measure("cost per token (less: better)", "{:.3f}", lambda row: row["cost_per_token"], True),
        Measure(
            "calls per token (fewer: better)", "{:.3f}", lambda row: row["calls_per_token"], True
        ),
    ),
)
"""The panels; in each, the first measure that is known."""
CALLS = "Calls per token: (target + {cost} x draft calls) / new tokens."


def sweep_curves(setting: str, values: Sequence, summaries: Sequence[Mapping]) -> Figure | None:
    """Latency speedup and calls per token over one setting, a line per decoder.

    `values` are those of the runs, in the same order; numbers are placed to scale, words in turn.
    """
    order = sorted(range(len(values)), key=lambda i: _place(values[i]))
    values, summaries = [values[i] for i in order], [summaries[i] for i in order]
    names = list(dict.fromkeys(name for s in summaries for name in s["decoders"]))
    measures = _known(summaries, names)
    if len(set(map(str, values))) < 2 or not measures:
        return None
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    places = [float(v) for v in values] if numeric else [float(i) for i in range(len(values))]
    with style.looks():
        figure = new_figure(4.4)
        for axes, measure in zip(_panels(figure, measures), measures, strict=True):
            for name in names:
                _curve(axes, measure, name, names, places, summaries)
            axes.set_xlabel(setting)
            axes.set_xticks(places, [str(v) for v in values])
            axes.grid(axis="y")
            head(axes, measure.label)
            if measure.less_is_better:
                axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=min(6, len(names)))
        every = [m.of(s, name) for m in measures for s in summaries for name in names]
        drawn = whisker_words([one for one in every if one])
        foot(figure, f"{_first(summaries)} {drawn}{_words(summaries)}")
    return figure


def sweep_map(
    settings: tuple[str, str], values: Sequence[tuple], summaries: Sequence[Mapping], decoder: str
) -> Figure | None:
    """Latency speedup and calls per token of one decoder over two settings, as heat maps."""
    across, down = (_distinct([pair[side] for pair in values]) for side in (0, 1))
    measures = _known(summaries, [decoder])
    if len(across) < 2 or len(down) < 2 or not measures:
        return None
    with style.looks():
        figure = new_figure(2.3 + 0.5 * len(down))
        panels = _panels(figure, measures)
        for axes, measure in zip(panels, measures, strict=True):
            pairs = zip(values, summaries, strict=True)
            cells = {
                (down.index(str(y)), across.index(str(x))): one
                for (x, y), summary in pairs
                if (one := measure.of(summary, decoder))
            }
            shape = (len(down), len(across))
            _map(axes, cells, shape, measure, f"{decoder}: {measure.label}")
            axes.set_xticks(range(len(across)), across)
            axes.set_yticks(range(len(down)), down)
            axes.set_xlabel(settings[0])
        panels[0].set_ylabel(settings[1])
        foot(
            figure,
            f"{_first(summaries)} Lighter: better. Framed: the best; the colours span its 95 % "
            f"interval at the least. {_words(summaries)}",
        )
    return figure


def _known(summaries: Sequence[Mapping], names: Sequence[str]) -> list[Measure]:
    """For each panel the first measure that some decoder has in some run."""
    found = (
        next((m for m in panel if any(m.of(s, name) for s in summaries for name in names)), None)
        for panel in MEASURES
    )
    return [measure for measure in found if measure]


def _words(summaries: Sequence[Mapping]) -> str:
    """What costs or calls per token are."""
    priced = ", ".join(dict.fromkeys(one["costs"] for one in summaries if one["costs"]))
    calls = CALLS.format(cost=cost_text(summaries))
    return f"Cost and predictions by {priced}." if priced else calls


def _panels(figure: Figure, measures: Sequence[Measure]) -> list[Axes]:
    return list(figure.subplots(1, len(measures), squeeze=False)[0])


def _curve(
    axes: Axes,
    measure: Measure,
    name: str,
    names: Sequence[str],
    places: Sequence[float],
    summaries: Sequence[Mapping],
) -> None:
    found = [measure.of(summary, name) for summary in summaries]
    have = [(place, one) for place, one in zip(places, found, strict=True) if one]
    mark = decoder_marks(names)[name]
    axes.errorbar(
        [place for place, _ in have],
        [one["value"] for _, one in have],
        yerr=whiskers([one for _, one in have]),
        color=mark.colour,
        marker=mark.marker,
        linestyle=mark.line,
        markersize=5,
        elinewidth=1,
        capsize=3 if any(one["low"] is not None for _, one in have) else 0,
        label=name,
    )


def _map(
    axes: Axes,
    cells: Mapping[tuple[int, int], Mapping],
    shape: tuple[int, int],
    measure: Measure,
    title: str,
) -> None:
    """Cells by (row, column); the best is framed, the title has its interval, and the colours reach
    as far as that interval at least, so that what is noise looks like noise."""
    table = np.full(shape, np.nan)
    for place, one in cells.items():
        table[place] = one["value"]
    pick = min if measure.less_is_better else max
    best = pick(cells, key=lambda place: cells[place]["value"])
    low, high = (cells[best][end] for end in ("low", "high"))
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    reach = max(np.nanmax(table) - np.nanmin(table), 0 if low is None else high - low) / 2
    axes.imshow(
        table,
        cmap="cividis_r" if measure.less_is_better else "cividis",
        aspect="auto",
        vmin=middle - reach,
        vmax=middle + reach,
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for (y, x), value in np.ndenumerate(table):
        if np.isnan(value):
            continue
        light = (value > middle) != measure.less_is_better
        ink, text = "#000000" if light else "#ffffff", measure.form.format(value)
        axes.text(x, y, text, ha="center", va="center", color=ink)
    y, x = best
    frame = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=style.RED, linewidth=2.5)
    axes.add_patch(frame)
    own = measure.form.format(cells[best]["value"])
    ends = "" if low is None else f" [{measure.form.format(low)}, {measure.form.format(high)}]"
    axes.set_title(f"{title}\nbest: {own}{ends}")


def _first(summaries: Sequence[Mapping]) -> str:
    first = f"{len(summaries)} runs, the first: {summaries[0]['title']}."
    return first if len({s["device"] for s in summaries}) == 1 else f"{first} {machines(summaries)}"


def _distinct(values: Sequence) -> list[str]:
    """The values as text, each once, in order."""
    return list(dict.fromkeys(str(value) for value in sorted(values, key=_place)))


def _place(value) -> tuple:
    """Numbers by size, then words by name, then what is missing."""
    if isinstance(value, (int, float)):
        return 0, value, ""
    return (2, 0, "") if value is None else (1, 0, str(value))
