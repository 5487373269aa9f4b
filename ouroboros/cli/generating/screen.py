"""How generated text is shown: in colours on a terminal, as it is anywhere else.

What the target said itself stands in the terminal's own colour; drafted text has the colours of a
report's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ouroboros.bench.report.plots.marks import SOURCES
from ouroboros.cli.generating.runner import Piece, Runner

OWN = ("target", "correction", "bonus")  # the target's own tokens
CONTROL = re.compile(r"[^\S\n\t ]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
GAP = 3  # columns between two texts


def coloured(pieces: Iterable[Piece], prompt: str = "") -> Text:
    """Return a dim prompt and pieces of text in their sources' colours, fit for a terminal: a
    control character is shown as a replacement character."""
    text = Text(CONTROL.sub("\N{REPLACEMENT CHARACTER}", prompt), style="dim")
    shown = Text()
    for piece, source in pieces:
        style = "" if source in OWN or source not in SOURCES else SOURCES[source][0].colour
        shown.append(CONTROL.sub("\N{REPLACEMENT CHARACTER}", piece), style)
    return Text.assemble(text, shown)


def write(console: Console, pieces: Sequence[Piece], prompt: str = "") -> None:
    """Write text that goes on from what was written before."""
    if console.is_terminal:
        console.print(coloured(pieces, prompt), end="", soft_wrap=True, highlight=False)
    else:
        console.file.write(prompt + "".join(piece for piece, _ in pieces))
    console.file.flush()


def legend(runners: Sequence[Runner]) -> Text:
    """Return which colour is whose, of the sources that drafted in these texts."""
    seen = {source for runner in runners for _, source in runner.pieces}
    drafted = [name for name in SOURCES if name in seen and name not in OWN]
    words = [("plain: the target's own", "")]
    words += [(f"{name}: {SOURCES[name][1]}", SOURCES[name][0].colour) for name in drafted]
    return Text("\n").join(Text(words, style) for words, style in words)


def columns(runners: Sequence[Runner], console: Console, *, whole: bool) -> Table:
    """Return texts side by side under their figures; unless `whole`, the last lines that fit."""
    width = (console.width - GAP * (len(runners) - 1)) // len(runners)
    heads = [head(runner).wrap(console, width) for runner in runners]
    room = max(1, console.height - max(map(len, heads)) - 2)
    table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    for _ in runners:
        table.add_column(width=width)
    table.add_row(*(Text("\n").join(lines) for lines in heads))
    table.add_row(*(Text("-" * width, style="dim") for _ in runners))
    table.add_row(*(body(runner, console, width, None if whole else room) for runner in runners))
    return table


def head(runner: Runner) -> Text:
    """Return a runner's name and figures, bold once it is through."""
    return Text("\n".join((runner.name, *runner.figures())), style="bold" if runner.done else "")


def body(runner: Runner, console: Console, width: int, room: int | None) -> Text:
    """Return the last `room` lines of a runner's text, or all of them."""
    lines = coloured(runner.pieces).wrap(console, width, tab_size=4)
    return Text("\n").join(lines[-room:] if room else lines)
