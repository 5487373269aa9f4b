"""Make reports from results folders: `ouroboros report`; `ouroboros.cli.arguments` has its help."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ouroboros.bench.report.gather import Measured, load, merge, run_folders
from ouroboros.bench.report.report import make_report, write_report
from ouroboros.bench.report.spec_bench import write_answers
from ouroboros.bench.report.summary import Summary
from ouroboros.bench.report.tables import as_text, run_tables, terminal_tables
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.run import short_path
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.cli.output import print_document
from ouroboros.costs import CostModel

PIPE_WIDTH = 120
"""Columns of a table where stdout is not a terminal."""


def report(options: argparse.Namespace) -> int:
    """Report on the folders; return the exit code."""
    costs = load_costs(options.costs)
    loaded, failures = gather(options.folders, remake=options.remake)
    for failure in failures:
        _say(f"error: {failure}")
    if not loaded:
        return 2
    if costs is not None:
        priced = CostModel(costs, f"the costs {costs.about['name']!r}")
        loaded = [replace(one, priced=priced) for one in loaded]
    shared = [folder.resolve().parent for folder in options.folders]
    beside = options.folders[0] if len(options.folders) == 1 else Path(os.path.commonpath(shared))
    out = options.out or beside / "report"

    def fail(line: str) -> None:
        failures.append(line)
        _say(f"error: {line}")

    runs = write_report(merge(loaded), out, tokenizer=options.tokenizer, on_failure=fail)
    for label, one, summary, _ in runs:
        if options.spec_bench:
            if summary.facts.task != SpecBench.name:
                _say(
                    f"warning: {label} is a run of {summary.facts.task}: its prompts are numbered "
                    "anew, and Spec-Bench's scripts will not know their categories"
                )
            write_answers(one, out / "spec_bench" / label.replace("/", "-"))
        print_summary(summary, label=label if len(runs) > 1 else "", wide=options.wide)
    _say(f"report: {short_path(out / 'report.html')}")
    _say(f"summary: {short_path(out / 'summary.json')}")
    print_document({run.label: run.summary.headline() for run in runs}, options.json)
    return 2 if failures else 0


def gather(folders: list[Path], *, remake: bool = False) -> tuple[list[Measured], list[str]]:
    """Read every run below the folders, each once; return the runs, and a line for each folder that
    cannot be read. `remake` writes each folder's own report anew."""
    found: dict[Path, Measured] = {}
    failures: list[str] = []
    for folder in folders:
        try:
            paths = run_folders(folder)
        except ValueError as error:
            failures.append(str(error))
            continue
        for path in paths:
            try:
                one = load(path)
                if remake:
                    make_report(ResultsFolder(path))
                found.setdefault(path.resolve(), one)
            except (ValueError, OSError) as error:
                failures.append(str(error))
    return list(found.values()), failures


def print_summary(summary: Summary, *, label: str = "", wide: bool = False) -> None:
    """Print a run's title and its tables of results; `wide`: all of its tables."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    title = f"{label}: {summary.facts.title}" if label else summary.facts.title
    print(title, end="\n\n")
    if not wide:
        for table in terminal_tables(summary, console.width):
            console.print(table)
            print()
        return
    for _, caption, frame in run_tables(summary):
        print(caption, as_text(frame, "simple"), sep="\n\n", end="\n\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
