"""One look for every picture: size, type, colours, and how a figure becomes a file.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which readers with any colour
vision tell apart; hatches, markers and line styles say the same again.
"""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

TITLE_WIDTH = 104  # characters of a line
HARD_SPACE = "\N{NO-BREAK SPACE}"
WIDTH_IN, DPI = 9.0, 150
INK, MUTED, GRID = "#222222", "#555555", "#cccccc"
BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#d6c500"
ORANGE, RED, PURPLE, GREY = "#e69f00", "#d55e00", "#cc79a7", "#999999"
OTHERS = (BLUE, GREEN, PURPLE, ORANGE, SKY, YELLOW)
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
RC = {
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ouroboros",
}


@dataclass(frozen=True)
class Mark:
    """How a decoder or a source of tokens is drawn; `line` is also CSS's word for it."""

    colour: str
    marker: str = "o"
    line: str = "solid"
    hatch: str = ""


SOURCES: dict[str, tuple[Mark, str]] = {
    "draft": (Mark(BLUE), "the draft model's own token"),
    "judged": (Mark(PURPLE, hatch="//"), "a phrase that the draft model scored too"),
    "phrase": (Mark(ORANGE, line="double", hatch="\\\\"), "a phrase of the text or of the pool"),
    "recycled": (Mark(GREEN, line="dashed", hatch=".."), "said before, after a rejected token"),
    "recall": (Mark(GREEN, line="double", hatch=".."), "drafted from the pool alone"),
    "suffix": (Mark(SKY, line="double", hatch="//"), "a pool phrase hung below the draft"),
    "runner-up": (Mark(PURPLE, line="dashed", hatch="xx"), "the draft model's second choice"),
    "pool": (Mark(RED, line="double"), "lookahead's verified phrase"),
    "prompt": (Mark(YELLOW, line="double", hatch="++"), "looked up in the text so far"),
    "correction": (Mark("#6e6e6e", line="dashed"), "the target disagreed with the draft"),
    "bonus": (Mark("#a6a6a6", line="dotted", hatch="//"), "free token after a full match"),
    "target": (Mark("#c9c9c9", line="none"), "the target's own token"),
    "unknown": (Mark("#e4e4e4", line="none", hatch=".."), "another engine does not say"),
}


def decoder_marks(names: Sequence[str]) -> dict[str, Mark]:
    """Return one mark for each decoder: Ouroboros red, other engines grey, the rest in turn.

    Greedy is grey too: it is what the others are measured against.
    """
    marks: dict[str, Mark] = {}
    rest = [name for name in names if not (is_ours(name) or is_peer(name) or name == "greedy")]
    ours = [name for name in names if is_ours(name)]
    for index, name in enumerate(ours):
        line = ("solid", "dashed", "dotted", "dashdot")[index % 4]
        marker = MARKERS[-index % len(MARKERS)] if index else "o"
        marks[name] = Mark((RED, ORANGE)[index % 2], marker, line)
    for index, name in enumerate(rest):
        colours = [colour for colour in OTHERS if len(ours) < 2 or colour != ORANGE]
        marks[name] = Mark(colours[index % len(colours)], MARKERS[index % len(MARKERS)])
    for index, name in enumerate(filter(is_peer, names)):
        marks[name] = Mark(GREY, ("x", "d", "P", "h")[index % 4], "dotted")
    for name in names:
        marks.setdefault(name, Mark(GREY, ".", "dotted"))
    return marks


def is_ours(name: str) -> bool:
    """Say whether a decoder is Ouroboros."""
    return name.startswith("ouroboros")


def is_peer(name: str) -> bool:
    """Say whether a decoder is another engine's."""
    return name.startswith("hf_")


def new_figure(height_in: float) -> Figure:
    """Return an empty figure of the common width."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    return Figure(figsize=(WIDTH_IN, height_in), dpi=100, layout=layout)


def head(axes: Axes, title: str) -> None:
    """Write a title above one of several panels, in lines that fit."""
    axes.set_title("\n".join(textwrap.wrap(title, 92, break_on_hyphens=False)))


def title(figure: Figure, text: str) -> None:
    """Write what was measured above everything, from the figure's edge, in lines that end between
    its parts, or in one that is longer than a line."""
    long = TITLE_WIDTH - len(" ·")
    parts = [p if len(p) > long else p.replace(" ", HARD_SPACE) for p in text.split(" · ")]
    whole = f"{HARD_SPACE}· ".join(parts)
    lines = textwrap.wrap(whole, TITLE_WIDTH, break_on_hyphens=False)
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11.5)


def foot(figure: Figure, text: str) -> None:
    """Write the small print below everything."""
    wrapped = "\n".join(textwrap.wrap(text, 150, break_on_hyphens=False))
    figure.supxlabel(wrapped, fontsize=8, color=MUTED, x=0.01, ha="left")


def whiskers(found: Sequence[Mapping]) -> np.ndarray:
    """Return [2, n]: how far the intervals reach below and above their values; NaN, of which no
    whisker is drawn, where there is none."""
    low = [f["value"] - f["low"] if f["low"] is not None else np.nan for f in found]
    high = [f["high"] - f["value"] if f["high"] is not None else np.nan for f in found]
    return np.maximum([low, high], 0)


def whisker_words(found: Sequence[Mapping]) -> str:
    """Return what the whiskers are, a sentence and a space; nothing where none is drawn."""
    drawn = any(one["low"] is not None for one in found)
    return "Whiskers: 95 % bootstrap over prompts. " if drawn else ""


def percentages(axis: Axis) -> None:
    """Write an axis of shares as whole percentages."""
    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def looks():
    """Return the context in which figures are drawn and written."""
    return mpl.rc_context(RC)


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, 900 points wide at `DPI` / 100; its layout, which takes half of the
    time, is kept for what is written of it afterwards."""
    with looks():
        figure.savefig(path, dpi=DPI)
    figure.set_layout_engine("none")


def save(figure: Figure, stem: Path) -> None:
    """Write `stem`.png and `stem`.svg; the same figure gives the same bytes."""
    save_png(figure, stem.with_suffix(".png"))
    with looks():
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def inline_svg(figure: Figure) -> str:
    """Return a figure for an HTML page: transparent, its inks the page's `--ink` and `--muted`.

    Ids are made the figure's own, since pages hold several figures.
    """
    buffer = io.StringIO()
    with looks():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (GRID, "grid")):
        text = text.replace(colour, f"var(--{name})")
    salt = f"f{zlib.crc32(text.encode()):x}-"
    text = re.sub(r'id="', f'id="{salt}', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{salt}", text)
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'class="plot"', text, count=1)
