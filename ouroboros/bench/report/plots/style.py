"""One look for every plot: size, fonts, axes, and how a figure becomes a file."""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

from ouroboros.bench.report.plots.marks import Mark

WIDTH_IN, DPI = 9.0, 150
TITLE_WIDTH, NOTE_WIDTH = 104, 150  # characters of a line
INK, MUTED, GRID = "#222222", "#555555", "#cccccc"
styled = mpl.rc_context(fname=Path(__file__).parent / "plot.mplstyle")
"""The decorator of every function that draws or writes a figure."""


def new_figure(height_in: float) -> Figure:
    """Return an empty figure of the common width."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    return Figure(figsize=(WIDTH_IN, height_in), dpi=100, layout=layout)


ENDS = ("", ".low", ".high")


def reach(frame: pd.DataFrame, metric: str) -> np.ndarray:
    """Return the error bars [2, rows] below and above a metric; NaN (not drawn) without limits."""
    value, low, high = (frame[metric + end].to_numpy(float) for end in ENDS)
    return np.maximum([value - low, high - value], 0)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows of a horizontal plot, the first on top."""
    axes.set_yticks(range(len(names)), list(names), fontsize=10.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def as_percent(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Write an axis of shares as whole percentages, with grid lines."""
    getattr(axes, f"{which}axis").set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis=which)


def panels(figure: Figure, count: int) -> np.ndarray:
    """Return `count` panels side by side."""
    return figure.subplots(1, count, squeeze=False)[0]


def stacked_bars(
    parts: pd.DataFrame, marks: Mapping[str, Mark], labels: Sequence[str] = ()
) -> Figure:
    """Draw a horizontal bar per row and a segment per column, wide ones with their percentage of
    the bar; `labels` are written behind the bars."""
    totals, left = parts.sum(axis=1), parts.cumsum(axis=1) - parts
    longest = totals.max()
    figure = new_figure(1.3 + 0.42 * len(parts))
    axes = figure.add_subplot()
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for name, widths in parts.items():
        mark, start = marks[str(name)], left[name]
        look: dict[str, Any] = {"color": mark.colour, "hatch": mark.hatch, "edgecolor": "white"}
        bars = axes.barh(range(len(parts)), widths, 0.66, start, label=name, linewidth=0.5, **look)
        shares = zip(widths, totals, strict=True)
        texts = [f"{100 * w / t:.0f}" if w > 0.055 * longest else "" for w, t in shares]
        for text in axes.bar_label(bars, texts, label_type="center", fontsize=8.5, color="#000000"):
            text.set_bbox(box if text.get_text() else None)
    for row, (total, label) in enumerate(zip(totals, labels, strict=False)):
        axes.text(total + 0.01 * longest, row, label, va="center", fontsize=9)
    axes.set_xlim(0, (1.06 + 0.012 * max(map(len, labels), default=0)) * longest)
    name_rows(axes, list(parts.index))
    legend_above(figure)
    return figure


def legend_above(figure: Figure) -> None:
    """Put the first panel's legend above all panels, as wide as the figure at most."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=5)


@styled
def with_title(figure: Figure, title: str, note: str = "") -> Figure:
    """Add a title and small print to a figure that is shown outside a report; return the figure.

    The title is broken between its parts ("a · b"), or inside a part that is longer than a line.
    """
    parts = [p if len(p) > TITLE_WIDTH - 2 else p.replace(" ", "\xa0") for p in title.split(" · ")]
    above = textwrap.wrap("\xa0· ".join(parts), TITLE_WIDTH, break_on_hyphens=False)
    below = textwrap.wrap(note, NOTE_WIDTH, break_on_hyphens=False)
    figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=11.5)
    figure.supxlabel("\n".join(below), fontsize=8, color=MUTED, x=0.01, ha="left")
    figure.set_figheight(figure.get_figheight() + 0.2 * len(above) + 0.15 * len(below))
    return figure


@styled
def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to files, PNG or SVG by their suffixes; the same figure gives the same bytes.

    The layout is computed once, for the first file.
    """
    for path in paths:
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)
        figure.set_layout_engine("none")


@styled
def inline_svg(figure: Figure) -> str:
    """Return a figure for an HTML page: transparent, in the page's `--ink`, `--muted`, `--grid`.

    Ids get a prefix of the figure's own, since a page holds several figures.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (GRID, "grid")):
        text = text.replace(colour, f"var(--{name})")
    prefix = f"f{zlib.crc32(text.encode()):x}-"
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}", text)
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'class="plot"', text, count=1)
