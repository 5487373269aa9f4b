"""The style of all plots, and the marks of decoders and token sources in plots, page and terminal.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which are safe for colour-blind
readers; markers, line styles and hatches repeat the distinction without colour.
"""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#d6c500"
ORANGE, RED, PURPLE, GREY = "#e69f00", "#d55e00", "#cc79a7", "#999999"
OTHERS = (BLUE, GREEN, PURPLE, SKY, YELLOW, ORANGE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("solid", "dashed", "dotted", "dashdot")


@dataclass(frozen=True)
class Mark:
    """How a decoder or a token source is drawn. `line` is matplotlib's line style for a decoder,
    CSS's border style for a source."""

    colour: str
    marker: str = "o"
    line: str = "solid"
    hatch: str = ""

    def points(self, **changes) -> dict:
        """Return the options of `Axes.errorbar` for a line with markers; `changes` override."""
        look = {"color": self.colour, "marker": self.marker, "linestyle": self.line}
        return look | {"markersize": 5, "elinewidth": 1.1, "capsize": 2.5} | changes


SOURCES: dict[str, tuple[Mark, str]] = {
    "draft": (Mark(BLUE), "a token that the draft model ranked high"),
    "judged": (Mark(PURPLE, hatch="//"), "phrase or recycled token, ranked by the draft model"),
    "phrase": (Mark(ORANGE, line="double", hatch="\\\\"), "phrase from the text or the pool"),
    "suffix": (Mark(ORANGE, line="dashed", hatch="//"), "pool phrase appended to the draft"),
    "pool": (Mark(ORANGE, hatch="xx"), "lookahead's verified phrase"),
    "prompt": (Mark(ORANGE, line="groove", hatch="++"), "looked up in the text so far"),
    "recycled": (Mark(GREEN, line="dashed", hatch=".."), "one of the target's earlier predictions"),
    "correction": (Mark("#6e6e6e", line="dashed"), "the target replaced a rejected draft token"),
    "bonus": (Mark("#a6a6a6", line="dotted", hatch="//"), "free token after a full match"),
    "target": (Mark("#c9c9c9", line="none"), "decoded by the target without a draft"),
    "window": (Mark("#e4e4e4", line="none"), "a cell of the Jacobi window, never accepted"),
    "padding": (Mark("#e4e4e4", line="none"), "makes the call faster, never accepted"),
    "unknown": (Mark("#e4e4e4", line="none", hatch=".."), "not reported by this engine"),
}
"""By token source: its mark and its meaning. N-grams of the text and of pools are orange, unless
the draft model ranked them."""


def decoder_marks(names: Sequence[str]) -> dict[str, Mark]:
    """Return one mark per decoder, whatever their order: Ouroboros and its variants red, greedy
    and other engines grey, the rest in other colours."""
    marks, used = dict[str, Mark](), Counter[tuple]()
    for name in sorted(names):
        colours: tuple[str, ...] = OTHERS
        lines: tuple[str, ...] = LINES[:1]
        if name.startswith("ouroboros"):
            colours, lines = (RED,), LINES
        elif name.startswith(("greedy", "hf_", "llama_cpp")):
            colours, lines = (GREY,), ("dotted",)
        place, used[colours] = used[colours], used[colours] + 1
        looks = (looks[place % len(looks)] for looks in (colours, MARKERS, lines))
        marks[name] = Mark(*looks)
    return {name: marks[name] for name in names}


WIDTH_IN, DPI = 6.5, 200
"""The common width of figures: at 600 pixels, a font of 9 points has 11 pixels."""
TITLE_WIDTH, NOTE_WIDTH = 74, 108  # characters per line
INK, MUTED, GRID = "#222222", "#555555", "#cccccc"
styled = mpl.rc_context(fname=Path(__file__).parent / "plots.mplstyle")
"""Decorator for every function that draws or writes a figure."""


def new_figure(height_in: float) -> Figure:
    """Return an empty figure of the common width."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)
    return Figure(figsize=(WIDTH_IN, height_in), dpi=100, layout=layout)


def reach(frame: pd.DataFrame, metric: str) -> np.ndarray:
    """Return the lengths of a metric's error bars below and above, [2, rows]; NaN if unknown."""
    value, low, high = (frame[metric + end].to_numpy(float) for end in ("", ".low", ".high"))
    return np.maximum([value - low, high - value], 0)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows of a horizontal plot, first row on top."""
    axes.set_yticks(range(len(names)), list(names), fontsize=10)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def as_percent(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Label an axis of shares in whole percent and add grid lines."""
    getattr(axes, f"{which}axis").set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis=which)


def legend_above(figure: Figure) -> None:
    """Draw the first panel's legend above all panels, at most as wide as the figure."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = max(1, 66 // (5 + max(map(len, labels), default=0)))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)


@styled
def with_title(figure: Figure, title: str, note: str = "") -> Figure:
    """Add a title and small print to a figure that is shown outside a report."""
    above = textwrap.wrap(title, TITLE_WIDTH, break_on_hyphens=False)
    below = textwrap.wrap(note, NOTE_WIDTH, break_on_hyphens=False)
    figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=11)
    figure.supxlabel("\n".join(below), fontsize=8, color=MUTED, x=0.01, ha="left")
    figure.set_figheight(figure.get_figheight() + 0.2 * len(above) + 0.15 * len(below))
    return figure


@styled
def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to files, PNG or SVG by suffix; the same figure gives identical files."""
    for path in paths:
        figure.savefig(path, dpi=DPI, metadata={"Date": None} if path.suffix == ".svg" else None)


@styled
def inline_svg(figure: Figure) -> str:
    """Return a figure as an `<svg>` element to embed in an HTML page, with the page's CSS
    variables `--ink`, `--muted` and `--grid` as colours. Ids get a prefix unique to the figure."""
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
