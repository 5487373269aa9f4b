"""Make reports from results folders: `ouroboros report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ouroboros.bench.metrics.intervals import FEWEST_PROMPTS
from ouroboros.bench.report.gather import Measured, load, run_folders
from ouroboros.bench.report.report import make_report, write_report
from ouroboros.bench.report.summary import Summary
from ouroboros.bench.report.tables import as_text, run_tables, terminal_tables
from ouroboros.bench.run.folder import RUN, ResultsFolder, load_costs
from ouroboros.cli.common import terminal
from ouroboros.cli.options import ReportOptions
from ouroboros.costs import CostModel


def report(options: ReportOptions, words: Sequence[str]) -> tuple[int, dict | None]:
    """Write the report on the folders and print each run's tables; return the exit code (2 if a
    folder could not be read) and each run's `Summary.headline` by label."""
    folders = list(map(Path, words))
    if options.out and Path(options.out, RUN).exists():
        raise ValueError(f"out={options.out} is a results folder: give another")
    costs, failed, found = load_costs(options.costs), False, dict[Path, Measured]()
    for path in chain.from_iterable(map(run_folders, folders)):
        try:
            found.setdefault(path.resolve(), load(path))
            if options.remake:
                make_report(ResultsFolder(path))
        except (ValueError, OSError) as error:
            failed = True
            print(f"error: {error}", file=sys.stderr)
    loaded = list(found.values())
    if not loaded:
        return 2, None
    if costs is not None:
        priced = CostModel(costs, f"the costs {costs.about['name']!r}")
        loaded = [replace(one, priced=priced) for one in loaded]
    shared = [folder.resolve().parent for folder in folders]
    beside = folders[0] if len(folders) == 1 else Path(os.path.commonpath(shared))
    out = Path(options.out or beside / "report")
    runs = write_report(loaded, out, tokenizer=options.tokenizer)
    for summary in runs:
        label = summary.label if len(runs) > 1 else ""
        print_summary(summary, label=label, wide=options.wide)
        for line in summary.notes:
            print(f"{label and f'{label}: '}{line}".replace("**", ""), file=sys.stderr)
    for name in ("report.html", "summary.json"):
        print(f"{Path(name).stem}: {out / name}", file=sys.stderr)
    return 2 if failed else 0, {run.label: run.headline() for run in runs}


def print_summary(summary: Summary, *, label: str = "", wide: bool = False) -> None:
    """Print a run's title and main tables; `wide`: all of its tables."""
    console = terminal()
    print(f"{label}: {summary.facts.title}" if label else summary.facts.title, end="\n\n")
    if wide:
        for table in run_tables(summary):
            print(table.caption, as_text(table.frame, "simple"), sep="\n\n", end="\n\n")
        return
    for shown in terminal_tables(summary, console.width):
        console.print(shown)
        print()
    if (prompts := summary.facts.prompts) < FEWEST_PROMPTS and len(summary.frame) > 1:
        few = f"{prompts} prompt{'s' * (prompts != 1)}"
        print(f"{few}: too few to say which decoder is faster (at least {FEWEST_PROMPTS})\n")
