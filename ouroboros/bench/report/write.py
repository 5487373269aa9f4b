"""The files of a report: one run's own summary, and the report over any set of runs.

A pure function of samples: made at any time, on any machine, it gives the same numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from ouroboros.bench.report import viewer
from ouroboros.bench.report.gather import Measured, load
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.speedups import cost_bars, note, speedup_bars
from ouroboros.bench.report.sections import Run, Section, numbers, run_section, sections, summarised
from ouroboros.bench.report.summary import Summary, summarise
from ouroboros.bench.report.tables import NOTES, as_text, legend, write_table
from ouroboros.bench.run.folder import ResultsFolder

MOST_TOKENS = 120_000
"""Tokens in the page's viewer over all runs, about 15 bytes each."""


def make_report(folder: ResultsFolder) -> Summary:
    """Write a run's summary.json, summary.md and speedup.png (and calls.png where nothing was
    timed) into its folder; return the summary.

    Raises `ValueError` where the folder holds no run.
    """
    summary = summarise(load(folder.path))
    folder.write_json("summary.json", summary.to_dict())
    folder.write_text("summary.md", render("report.md", [run_section(summary)], [summary]))
    calls = None if summary.facts.timed else cost_bars(summary)
    for name, figure in (("speedup.png", speedup_bars(summary)), ("calls.png", calls)):
        (folder.path / name).unlink(missing_ok=True)
        if figure is not None:
            style.with_title(figure, summary.facts.title, note(summary))
            style.save(figure, folder.path / name)
    return summary


def write_report(
    measured: Sequence[Measured],
    out: Path,
    *,
    tokenizer: str | None = None,
    on_failure: Callable[[str], object] | None = None,
) -> list[Run]:
    """Write the report into `out`, made if need be; return the runs that it shows.

        report.html   everything, in one file that needs nothing else
        report.md     the same tables and plots as Markdown
        summary.json  every metric of every run, by its label
        numbers.csv   every number in full, one row per run and decoder
        tables/       each table as .csv and .tex (booktabs)
        plots/        each plot as .png and .svg

    `tokenizer`: the runs' tokenizer, for runs whose models are elsewhere now. `on_failure` as in
    `summarised`.
    """
    runs = summarised(measured, on_failure)
    parts, summaries = sections(runs), [run.summary for run in runs]
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for table in part.tables:
            caption = f"{part.title}. {table.caption}"
            write_table(table.frame, out / "tables" / table.name, caption=caption)
        for one in part.pictures:
            style.save(one.figure, *(out / f"plots/{one.name}.{kind}" for kind in ("png", "svg")))
    share = MOST_TOKENS // max(1, len(runs))
    shown = [
        viewer.viewer_run(run.measured, run.label, most_tokens=share, tokenizer=tokenizer)
        for run in runs
    ]
    data = {"runs": shown, "sources": viewer.legend(), "step": viewer.STEP}
    whole = {run.label: run.summary.to_dict() for run in runs}
    texts = {
        "summary.json": json.dumps(whole, indent=2, ensure_ascii=False) + "\n",
        "numbers.csv": numbers(runs).to_csv(index=False),
        "report.md": render("report.md", parts, summaries),
        "report.html": render("report.html", parts, summaries, data=data),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return runs


def render(name: str, parts: Sequence[Section], summaries: Sequence[Summary], **data) -> str:
    """Return a document made from its template in `html/`: report.md, or report.html, which needs
    no network (plots are inline SVG in the page's light or dark scheme)."""
    environment = Environment(
        loader=PackageLoader("ouroboros.bench.report", "html"),
        autoescape=select_autoescape(("html.jinja",)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["svg"] = lambda figure: Markup(style.inline_svg(figure))
    environment.filters |= {"prose": prose, "cell": unbroken, "text": as_text}
    context = {"sections": parts, "glossary": legend(summaries), "notes": NOTES, **data}
    return environment.get_template(f"{name}.jinja").render(**context)


def prose(text: str) -> Markup:
    """Return text as HTML, with Markdown's `code` and **bold** as elements.

    >>> prose("**Incomplete**: no `greedy` & co")
    Markup('<b>Incomplete</b>: no <code>greedy</code> &amp; co')
    """
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html))


def unbroken(text: str) -> str:
    """Let a cell break before an interval and between the parts of a list, nowhere else.

    >>> unbroken("3.04x [2.15, 3.86]")
    '3.04x [2.15,\\xa03.86]'
    """
    return re.sub(r"(?<!,) (?!\[)|(?<=,) (?=[\d.])", "\N{NO-BREAK SPACE}", str(text))
