"""Numbers as the cells of tables, and frames of cells as text, Markdown, CSV or LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ouroboros.bench.metrics.intervals import Interval

LEAST = ("tokens by source %", "decode speedup", "after the first step", "samples", "nodes/call")
KEPT = ("decoder", "lossless")
"""What a narrow table leaves out first, and what never."""
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def as_text(frame: pd.DataFrame, style: str = "github") -> str:
    """Return a frame as text (`style`: one of tabulate's), the first column to the left."""
    align = ["left", *["right"] * (frame.shape[1] - 1)] if len(frame) else None
    return frame.to_markdown(index=False, tablefmt=style, disable_numparse=True, colalign=align)


def as_latex(frame: pd.DataFrame, caption: str, label: str) -> str:
    """Return a frame as a LaTeX table with booktabs rules, everything escaped; \\ref{tab:<label>}
    names it."""
    safe = caption.translate(LATEX)
    columns = "l" + "r" * (frame.shape[1] - 1)
    return frame.to_latex(
        index=False, escape=True, caption=safe, label=f"tab:{label}", column_format=columns
    )


def write_table(frame: pd.DataFrame, stem: Path, *, caption: str) -> None:
    """Write `stem`.md, .csv and .tex; the LaTeX one needs \\usepackage{booktabs}."""
    stem.with_suffix(".md").write_text(f"{caption}\n\n{as_text(frame)}\n", encoding="utf-8")
    stem.with_suffix(".tex").write_text(as_latex(frame, caption, stem.name), encoding="utf-8")
    frame.to_csv(stem.with_suffix(".csv"), index=False)


def number(value: float | None, digits: int) -> str:
    """Return a rounded number, "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """Return a share as a whole percentage."""
    return "-" if value is None else f"{100 * value:.0f} %"


def times(value: float | None) -> str:
    """Return a ratio as "1.23x"."""
    return "-" if value is None else f"{value:.2f}x"


def interval(found: Mapping | None) -> str:
    """Return a ratio and its interval."""
    return "-" if found is None else Interval(**found).text(2, "x")


def ratio(found: Mapping | None) -> str:
    """Return an amount per token and its interval."""
    return "-" if found is None else Interval(**found).text(3)


def within(frame: pd.DataFrame, width: int) -> pd.DataFrame:
    """Return a frame whose text has no line longer than `width`: the columns that matter least are
    left out, then others from the right."""
    for name in (*LEAST, *reversed(frame.columns)):
        if len(as_text(frame, "simple").partition("\n")[0]) <= width:
            break
        if name in frame and name not in KEPT:
            frame = frame.drop(columns=name)
    return frame
