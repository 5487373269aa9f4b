"""Make reports from results folders: tables, pictures, and one HTML page.

    ouroboros report results/main              one run
    ouroboros report results/local/sweep       a sweep: a folder of run folders
    ouroboros report results/main results/main_t08 --out results/report

The report over all of them goes to --out: report.html, report.md, numbers.csv,
tables/ and plots/. Each folder's own summary.json, summary.md and picture stay
as they are, unless --remake is given. --costs counts every run by costs of a
name or of a profile's file: cost per token, predicted speedups. Parts of one
run that several workers measured are joined. A folder that cannot be read is
named on stderr and left out; the exit code is then 2. Tables here are at most
120 columns wide, the rest is in the report. The last line on stdout is one
JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from ouroboros.bench.measure.predicted import Priced
from ouroboros.bench.report.combined import write_report
from ouroboros.bench.report.folder_report import headline, make_report, tables
from ouroboros.bench.report.gather import Measured, load, merge, run_folders
from ouroboros.bench.report.run_set import RunSet
from ouroboros.bench.report.spec_bench import write_answers
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.bench.tasks.specbench import SpecBench
from ouroboros.costs.named import named


def main() -> int:
    """Report on the folders; return the exit code."""
    options = _options()
    try:
        priced = priced_by(options.costs) if options.costs else None
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    loaded, bad = gather(options.folders, remake=options.remake)
    if not loaded:
        return 2
    loaded = [replace(one, priced=priced) if priced else one for one in loaded]
    out = options.out or _beside(options.folders)
    measured = merge(loaded)
    try:
        shown = write_report(measured, out, tokenizer=options.tokenizer)
        if options.spec_bench:
            for label, one in zip(shown.labels, measured, strict=True):
                warn_of_other_tasks(label, one.run["task"]["name"])
                write_answers(one, out / "spec_bench" / label.replace("/", "-"))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(shown, out)
    return 2 if bad else 0


def priced_by(name: str) -> Priced:
    """Return the costs of a name or of a file. Raises `ValueError` for what is neither."""
    return Priced(f"the costs {Path(name).stem!r}", named(name))


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


def show(runs: RunSet, out: Path) -> None:
    """Print each run's tables and, as the last line, one JSON document."""
    for label, summary in zip(runs.labels, runs.summaries, strict=True):
        head = f"{label}: {summary['title']}" if len(runs.labels) > 1 else summary["title"]
        print(head, *tables(summary, "simple", width=120), sep="\n\n", end="\n\n")
    print(f"report: {os.path.relpath(out / 'report.html')}", file=sys.stderr)
    pairs = zip(runs.labels, runs.summaries, strict=True)
    document = {label: headline(summary) for label, summary in pairs}
    print(json.dumps(document, ensure_ascii=False))


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="a results folder, or one of such"
    )
    parser.add_argument("--out", type=Path, help="where the report goes (default: beside them)")
    parser.add_argument("--costs", help="count by these costs: a name, or a profile's costs.json")
    parser.add_argument(
        "--remake", action="store_true", help="make each folder's own summary and picture anew"
    )
    parser.add_argument(
        "--spec-bench", action="store_true", help="write answers in Spec-Bench's format as well"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="the runs' tokenizer, so that the page shows text (default: where run.json says)",
    )
    return parser.parse_args()
