"""The report over any set of measurements, as files in one folder.

report.html   everything, in one file that needs nothing else
report.md     the same tables and pictures as Markdown
numbers.csv   every number in full, one row per run and decoder
tables/       each table as .md, .csv and .tex (booktabs); *narrow.tex for one column of a paper
plots/        each picture as .png and .svg
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ouroboros.bench.report import compare
from ouroboros.bench.report.cells import as_latex, as_text, write_table
from ouroboros.bench.report.folder_report import legend
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.page import render
from ouroboros.bench.report.plots.style import save
from ouroboros.bench.report.run_set import RunSet, run_set
from ouroboros.bench.report.sections import Section, sections


def write_report(
    measured: Sequence[Measured], out: Path, *, tokenizer: str | None = None
) -> RunSet:
    """Write the report into `out`, made if need be; return the runs it shows.

    `tokenizer`: the place of the runs' tokenizer, for runs on a folder that lies elsewhere now.
    """
    found = run_set(measured)
    parts = sections(found)
    for folder in (out / "tables", out / "plots"):
        folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for table in part.tables:
            caption = f"{part.title}. {table.caption}"
            write_table(table.frame, out / "tables" / f"{table.name}", caption=caption)
        for table in part.narrow:
            text = as_latex(table.frame, table.caption, table.name)
            (out / "tables" / f"{table.name}.tex").write_text(text, encoding="utf-8")
        for picture in part.pictures:
            save(picture.figure, out / "plots" / f"{picture.name}")
    numbers = compare.numbers_frame({"run": found.labels}, found.summaries)
    numbers.to_csv(out / "numbers.csv", index=False)
    (out / "report.md").write_text(_markdown(parts, found.summaries), encoding="utf-8")
    page = render(found, parts, tokenizer=tokenizer)
    (out / "report.html").write_text(page, encoding="utf-8")
    return found


def _markdown(parts: Sequence[Section], summaries: Sequence[Mapping]) -> str:
    lines = []
    for level, part in enumerate(parts):
        lines += [f"{'##' if level else '#'} {part.title}", *part.notes]
        for table in part.tables:
            lines += [f"**{table.caption}**", as_text(table.frame)]
        for picture in part.pictures:
            lines.append(f"![{picture.caption}](plots/{picture.name}.png)")
    return "\n\n".join([*lines, legend(summaries)]) + "\n"
