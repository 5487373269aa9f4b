"""The colours, markers and line styles of decoders and token sources, in plots, page and terminal.

The colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), which readers with any colour
vision can distinguish; markers, line styles and hatches repeat the distinction without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#d6c500"
ORANGE, RED, PURPLE, GREY = "#e69f00", "#d55e00", "#cc79a7", "#999999"
OTHERS = (BLUE, GREEN, PURPLE, ORANGE, SKY, YELLOW)
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("solid", "dashed", "dotted", "dashdot")


@dataclass(frozen=True)
class Mark:
    """How a decoder or a token source is drawn; `line` is also a CSS border style."""

    colour: str
    marker: str = "o"
    line: str = "solid"
    hatch: str = ""

    def points(self, **changes) -> dict:
        """Return matplotlib's options for a line with markers and error bars."""
        look = {"color": self.colour, "marker": self.marker, "linestyle": self.line}
        return look | {"markersize": 5, "elinewidth": 1.1, "capsize": 2.5} | changes


SOURCES: dict[str, tuple[Mark, str]] = {
    "draft": (Mark(BLUE), "the draft model's first choice"),
    "judged": (Mark(PURPLE, hatch="//"), "phrase token scored by the draft model"),
    "phrase": (Mark(ORANGE, line="double", hatch="\\\\"), "phrase from the text or the pool"),
    "recycled": (Mark(GREEN, line="dashed", hatch=".."), "seen before after a rejected token"),
    "recall": (Mark(GREEN, line="double", hatch=".."), "drafted from the pool alone"),
    "suffix": (Mark(SKY, line="double", hatch="//"), "pool phrase appended to the draft"),
    "runner-up": (Mark(PURPLE, line="dashed", hatch="xx"), "the draft model's second choice"),
    "pool": (Mark(RED, line="double"), "lookahead's verified phrase"),
    "prompt": (Mark(YELLOW, line="double", hatch="++"), "looked up in the text so far"),
    "correction": (Mark("#6e6e6e", line="dashed"), "the target replaced a rejected draft token"),
    "bonus": (Mark("#a6a6a6", line="dotted", hatch="//"), "free token after a full match"),
    "target": (Mark("#c9c9c9", line="none"), "decoded by the target without a draft"),
    "unknown": (Mark("#e4e4e4", line="none", hatch=".."), "not reported by this engine"),
}
"""By token source: its mark and its meaning."""


def decoder_marks(names: Sequence[str]) -> dict[str, Mark]:
    """Return one mark per decoder, in order: Ouroboros red, greedy and other engines grey, the rest
    in turn.

    Variants of Ouroboros alternate red and orange and differ by line and marker. The marks depend
    on which decoders there are, not on their order.
    """
    order, names = names, sorted(names)
    ours = [name for name in names if name.startswith("ouroboros")]
    peers = [name for name in names if name.startswith("hf_")]
    rest = [name for name in names if name not in (*ours, *peers, "greedy")]
    colours = [colour for colour in OTHERS if len(ours) < 2 or colour != ORANGE]
    marks = {"greedy": Mark(GREY, ".", "dotted")}
    for index, name in enumerate(ours):
        marks[name] = Mark((RED, ORANGE)[index % 2], ("o", *MARKERS)[index % 9], LINES[index % 4])
    for index, name in enumerate(rest):
        marks[name] = Mark(colours[index % len(colours)], MARKERS[index % len(MARKERS)])
    for index, name in enumerate(peers):
        marks[name] = Mark(GREY, ("x", "d", "P", "h")[index % 4], "dotted")
    return {name: marks[name] for name in order}
