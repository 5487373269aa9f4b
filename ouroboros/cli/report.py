"""Make reports from results folders: `ouroboros report`.

What can be typed, and what is written, stands in `ouroboros.cli.arguments`.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from ouroboros.bench.report.combined import write_report
from ouroboros.bench.report.folder_report import headline, make_report, tables
from ouroboros.bench.report.gather import Measured, load, merge, run_folders
from ouroboros.bench.report.run_set import RunSet
from ouroboros.bench.report.spec_bench import write_answers
from ouroboros.bench.run.costs import load_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.cli import place
from ouroboros.cli.output import print_document
from ouroboros.costs import CostModel


def report(options: argparse.Namespace) -> int:
    """Report on the folders; return the exit code."""
    costs = load_costs(options.costs)
    loaded, bad = gather(options.folders, remake=options.remake)
    if not loaded:
        return 2
    if costs is not None:
        priced = CostModel(costs, f"the costs {costs.about['name']!r}")
        loaded = [replace(one, priced=priced) for one in loaded]
    out = options.out or _beside(options.folders)
    measured = merge(loaded)
    shown = write_report(measured, out, tokenizer=options.tokenizer)
    if options.spec_bench:
        for label, one in zip(shown.labels, measured, strict=True):
            warn_of_other_tasks(label, one.run["task"]["name"])
            write_answers(one, out / "spec_bench" / label.replace("/", "-"))
    show(shown, out, options.json)
    return 2 if bad else 0


def gather(folders: list[Path], *, remake: bool = False) -> tuple[list[Measured], int]:
    """Read every run below the folders, and where it is to be remade make its own report; return
    the runs and the failures.

    A run named twice counts once.
    """
    found: dict[Path, Measured] = {}
    bad = 0
    for folder in folders:
        try:
            paths = run_folders(folder)
        except ValueError as error:
            bad += _failed(error)
            continue
        for path in paths:
            try:
                one = load(path)
                if remake:
                    make_report(ResultsFolder(path))
                found.setdefault(path.resolve(), one)
            except (ValueError, KeyError, OSError) as error:
                bad += _failed(error, path)
    return list(found.values()), bad


def show(runs: RunSet, out: Path, as_json: bool) -> None:
    """Print each run's tables and, as the last line, one JSON document."""
    for label, summary in zip(runs.labels, runs.summaries, strict=True):
        head = f"{label}: {summary['title']}" if len(runs.labels) > 1 else summary["title"]
        print(head, *tables(summary, "simple", width=120), sep="\n\n", end="\n\n")
    print(f"report: {place(out / 'report.html')}", file=sys.stderr)
    pairs = zip(runs.labels, runs.summaries, strict=True)
    document = {label: headline(summary) for label, summary in pairs}
    print_document(document, as_json)


def warn_of_other_tasks(label: str, task: str) -> None:
    """Say where answers in Spec-Bench's format are not answers to its questions."""
    if task != SpecBench.name:
        print(
            f"warning: {label} is a run of {task}: its prompts are numbered anew, and Spec-Bench's "
            "scripts will not know their categories",
            file=sys.stderr,
        )


def _failed(error: Exception, path: Path | None = None) -> int:
    missing = isinstance(error, KeyError)
    text = f"{path}: run.json or a sample lacks {error}" if missing else str(error)
    print(f"error: {text}", file=sys.stderr)
    return 1


def _beside(folders: list[Path]) -> Path:
    """The folder `report` in the only folder, or in what several have in common."""
    if len(folders) == 1:
        return folders[0] / "report"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "report"
