"""The report as one HTML file that asks nothing of the network.

Tables are real tables, pictures are inline SVG that follows the page's light or dark scheme, and
the completions lie in it as JSON for the viewer. The files of `html/` hold structure, look and
behaviour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from ouroboros.bench.report.plots.style import inline_svg
from ouroboros.bench.report.run_set import RunSet
from ouroboros.bench.report.sections import Section
from ouroboros.bench.report.tables import NOTES, legend
from ouroboros.bench.report.viewer import STEP, viewer_run
from ouroboros.bench.report.viewer import legend as source_legend

MOST_TOKENS = 120_000
"""That the viewer carries over all runs, about 15 bytes each."""


def render(found: RunSet, parts: Sequence[Section], *, tokenizer: str | None = None) -> str:
    """Return the page; `tokenizer` as in `viewer_run`."""
    share = MOST_TOKENS // max(1, len(found.measured))
    pairs = zip(found.measured, found.labels, strict=True)
    data = {
        "runs": [
            viewer_run(one, label, most_tokens=share, tokenizer=tokenizer) for one, label in pairs
        ],
        "sources": source_legend(),
        "step": STEP,
    }
    environment = Environment(
        loader=PackageLoader("ouroboros.bench.report", "html"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        title=parts[0].title,
        sections=[_section(part) for part in parts],
        single=len(found.measured) == 1,
        legend="; ".join([f"{k}: {v}" for k, v in legend(found.summaries).items()] + [NOTES]),
        data=data,
    )


def _section(part: Section) -> dict:
    return {
        "title": part.title,
        "main": part.main,
        "notes": [note.replace("**", "") for note in part.notes],
        "tables": [
            {
                "name": table.name,
                "caption": table.caption,
                "columns": list(table.frame.columns),
                "rows": [[_breakable(cell) for cell in row] for row in table.frame.values],
            }
            for table in part.tables
        ],
        "pictures": [
            {
                "name": picture.name,
                "caption": picture.caption,
                "svg": Markup(inline_svg(picture.figure)),
            }
            for picture in part.pictures
        ],
    }


def _breakable(cell: str) -> str:
    """Let a cell break before an interval and between the parts of a list, nowhere else.

    >>> _breakable("3.04x [2.15, 3.86]")
    '3.04x [2.15,\\xa03.86]'
    """
    return re.sub(r"(?<!,) (?!\[)|(?<=,) (?=[\d.])", "\N{NO-BREAK SPACE}", str(cell))
