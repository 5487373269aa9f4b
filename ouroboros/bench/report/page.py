"""The report as one HTML file that needs no network.

Tables are sortable HTML tables, plots are inline SVG that follows the page's light or dark scheme,
and completions are embedded as JSON for the viewer. `html/` holds template, style and scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from ouroboros.bench.report import tables, viewer
from ouroboros.bench.report.plots.style import inline_svg
from ouroboros.bench.report.run_set import RunSet
from ouroboros.bench.report.sections import Section

MOST_TOKENS = 120_000
"""Tokens in the viewer over all runs, about 15 bytes each."""


def render(found: RunSet, parts: Sequence[Section], *, tokenizer: str | None = None) -> str:
    """Return the page; `tokenizer` is `viewer_run`'s."""
    share = MOST_TOKENS // max(1, len(found.measured))
    runs = [
        viewer.viewer_run(run, label, most_tokens=share, tokenizer=tokenizer)
        for run, label in zip(found.measured, found.labels, strict=True)
    ]
    environment = Environment(
        loader=PackageLoader("ouroboros.bench.report", "html"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"svg": lambda f: Markup(inline_svg(f)), "prose": prose, "cell": cell}
    return environment.get_template("page.html.jinja").render(
        sections=parts,
        glossary=tables.legend(found.summaries),
        notes=tables.NOTES,
        data={"runs": runs, "sources": viewer.legend(), "step": viewer.STEP},
    )


def prose(text: str) -> Markup:
    """Return text as HTML, with Markdown's `code` and **bold** as elements.

    >>> prose("**Incomplete**: no `greedy` & co")
    Markup('<b>Incomplete</b>: no <code>greedy</code> &amp; co')
    """
    found = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", found))


def cell(text: str) -> str:
    """Let a cell break before an interval and between the parts of a list, nowhere else.

    >>> cell("3.04x [2.15, 3.86]")
    '3.04x [2.15,\\xa03.86]'
    """
    return re.sub(r"(?<!,) (?!\[)|(?<=,) (?=[\d.])", "\N{NO-BREAK SPACE}", str(text))
