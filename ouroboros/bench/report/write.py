"""The files of a report: one run's own summary, and the report over any set of runs.

A pure function of samples: made at any time, on any machine, it gives the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ouroboros.bench.report.gather import Measured, load
from ouroboros.bench.report.page import render
from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.speedups import cost_bars, note, speedup_bars
from ouroboros.bench.report.run_set import RunSet, run_set
from ouroboros.bench.report.sections import Section, sections
from ouroboros.bench.report.summary import Summary, summarise
from ouroboros.bench.report.tables import NOTES, as_text, legend, run_tables, write_table
from ouroboros.bench.run.folder import ResultsFolder


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
    return "\n\n".join([*parts, _legend([summary])]) + "\n"


def write_report(
    measured: Sequence[Measured], out: Path, *, tokenizer: str | None = None
) -> RunSet:
    """Write the report into `out`, made if need be; return the runs that it shows.

        report.html   everything, in one file that needs nothing else
        report.md     the same tables and plots as Markdown
        summary.json  every metric of every run, by its label
        numbers.csv   every number in full, one row per run and decoder
        tables/       each table as .md, .csv and .tex (booktabs)
        plots/        each plot as .png and .svg

    `tokenizer`: the runs' tokenizer, for runs whose models are elsewhere now.
    """
    found = run_set(measured)
    parts = sections(found)
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for table in part.tables:
            caption = f"{part.title}. {table.caption}"
            write_table(table.frame, out / "tables" / table.name, caption=caption)
        for picture in part.pictures:
            plot = f"{out}/plots/{picture.name}"
            style.save(picture.figure, Path(f"{plot}.png"), Path(f"{plot}.svg"))
    pairs = zip(found.labels, found.summaries, strict=True)
    whole = {label: summary.to_dict() for label, summary in pairs}
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
    found.numbers().to_csv(out / "numbers.csv", index=False)
    (out / "report.md").write_text(_markdown(parts, found.summaries), encoding="utf-8")
    page = render(found, parts, tokenizer=tokenizer)
    (out / "report.html").write_text(page, encoding="utf-8")
    return found


def _markdown(parts: Sequence[Section], summaries: Sequence[Summary]) -> str:
    lines = []
    for level, part in enumerate(parts):
        lines += [f"{'##' if level else '#'} {part.title}", *part.notes]
        for table in part.tables:
            lines += [f"**{table.caption}**", as_text(table.frame)]
        for picture in part.pictures:
            lines += [f"![{picture.caption}](plots/{picture.name}.png)", picture.caption]
    return "\n\n".join([*lines, _legend(summaries)]) + "\n"


def _legend(summaries: Sequence[Summary]) -> str:
    lines = [f"- {heading}: {definition}" for heading, definition in legend(summaries).items()]
    return "\n".join([*lines, "", NOTES])
