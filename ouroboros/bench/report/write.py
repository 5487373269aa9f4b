"""The files of a report: one run's own summary, and the report over any set of runs.

A pure function of samples: made at any time, on any machine, it gives the same numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape

from ouroboros.bench.report import viewer
from ouroboros.bench.report.gather import Measured, load
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.speedups import cost_bars, note, speedup_bars
from ouroboros.bench.report.sections import Run, Section, numbers, sections, summarised
from ouroboros.bench.report.summary import Summary, summarise
from ouroboros.bench.report.tables import NOTES, as_text, legend, run_tables, write_table
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
    folder.write_text("summary.md", to_markdown(summary))
    calls = None if summary.facts.timed else cost_bars(summary)
    for name, figure in (("speedup.png", speedup_bars(summary)), ("calls.png", calls)):
        (folder.path / name).unlink(missing_ok=True)
        if figure is not None:
            style.with_title(figure, summary.facts.title, note(summary))
            style.save(figure, folder.path / name)
    return summary


def to_markdown(summary: Summary) -> str:
    """Return summary.md: title, all tables, failures and the definitions of their columns."""
    parts = [f"# {summary.facts.title}", summary.facts.footnote, *summary.notes]
    for _, caption, frame in run_tables(summary):
        parts += [f"**{caption}**", as_text(frame)]
    return _document(parts, [summary])


def write_report(
    measured: Sequence[Measured], out: Path, *, tokenizer: str | None = None
) -> list[Run]:
    """Write the report into `out`, made if need be; return the runs that it shows.

        report.html   everything, in one file that needs nothing else
        report.md     the same tables and plots as Markdown
        summary.json  every metric of every run, by its label
        numbers.csv   every number in full, one row per run and decoder
        tables/       each table as .md, .csv and .tex (booktabs)
        plots/        each plot as .png and .svg

    `tokenizer`: the runs' tokenizer, for runs whose models are elsewhere now.
    """
    runs = summarised(measured)
    parts, lines = sections(runs), []
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    for level, part in enumerate(parts):
        lines += [f"{'##' if level else '#'} {part.title}", *part.notes]
        for name, caption, frame in part.tables:
            lines += [f"**{caption}**", as_text(frame)]
            write_table(frame, out / "tables" / name, caption=f"{part.title}. {caption}")
        for name, caption, figure in part.pictures:
            lines += [f"![{caption}](plots/{name}.png)", caption]
            style.save(figure, *(Path(f"{out}/plots/{name}.{kind}") for kind in ("png", "svg")))
    whole = {run.label: run.summary.to_dict() for run in runs}
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
    numbers(runs).to_csv(out / "numbers.csv", index=False)
    document = _document(lines, [run.summary for run in runs])
    (out / "report.md").write_text(document, encoding="utf-8")
    (out / "report.html").write_text(page(runs, parts, tokenizer=tokenizer), encoding="utf-8")
    return runs


def page(runs: Sequence[Run], parts: Sequence[Section], *, tokenizer: str | None = None) -> str:
    """Return the report as one HTML file that needs no network.

    Tables can be sorted, plots are inline SVG in the page's light or dark scheme, completions are
    embedded as JSON for the viewer; `html/` holds template, style and scripts.
    """
    share = MOST_TOKENS // max(1, len(runs))
    shown = [
        viewer.viewer_run(run.measured, run.label, most_tokens=share, tokenizer=tokenizer)
        for run in runs
    ]
    environment = Environment(
        loader=PackageLoader("ouroboros.bench.report", "html"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda figure: Markup(style.inline_svg(figure))
    environment.filters |= {"prose": prose, "cell": unbroken}
    return environment.get_template("page.html.jinja").render(
        sections=parts,
        glossary=legend([run.summary for run in runs]),
        notes=NOTES,
        data={"runs": shown, "sources": viewer.legend(), "step": viewer.STEP},
    )


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


def _document(lines: Sequence[str], summaries: Iterable[Summary]) -> str:
    """Markdown: `lines` and the definitions of the metrics that the tables show."""
    definitions = [f"- {heading}: {text}" for heading, text in legend(list(summaries)).items()]
    return "\n\n".join([*lines, "\n".join([*definitions, "", NOTES])]) + "\n"
