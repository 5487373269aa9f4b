"""Write the tables of README and docs from results/, or check that they are what results/ give.

    python scripts/reproduce/figures.py             write them (make figures)
    python scripts/reproduce/figures.py --check     change nothing; exit 1 if a table differs
    python scripts/reproduce/figures.py --begin FOLDER

A table stands between two markers of a page:

    <!-- results: KIND FOLDER ... -->
    <!-- end -->

A table depends on its folders alone, so that a figure edited by hand is found. The line below it
says on which machine, when and at which commit the folders were measured; a folder that other
sources than the present ones have made is a warning. `--begin`, for the scripts beside this one,
moves results of other sources to results/local/before and records which sources make new ones.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tables import KINDS, ONE_FOLDER

from ouroboros.bench.run.identity import provenance, sources_hash

MARKED = re.compile(r"<!-- results: ([^\n]+?) -->\n(.*?)<!-- end -->", re.DOTALL)
BEFORE = Path("results", "local", "before")
MADE_BY = "provenance.json"
RECORDS = ("run.json", "agreement.json", "tuning.json", MADE_BY)
"""Files that say how a folder was made, the best first."""


def written(page: str, root: Path, place: Path) -> str:
    """Return a page with its tables made anew from the folders below `root`; links start at
    `place`. Raises `ValueError` for a marker of an unknown kind."""

    def made(found: re.Match) -> str:
        kind, *folders = found[1].split()
        if kind not in KINDS:
            raise ValueError(f"<!-- results: {found[1]} -->: choose from {', '.join(KINDS)}")
        text = table(kind, folders, root, place)
        return f"<!-- results: {found[1]} -->\n\n{text}\n\n<!-- end -->"

    return MARKED.sub(made, page)


def table(kind: str, folders: Sequence[str], root: Path, place: Path) -> str:
    """Return one table in Markdown and the line below it."""
    paths = behind(kind, folders, root)
    if not paths:
        return f"*Not measured yet: `scripts/reproduce/{Path(folders[0]).parts[1]}.sh`.*"
    if kind in ONE_FOLDER and len(paths) > 1:
        raise ValueError(f"results: {kind} {' '.join(folders)}: give one folder, not {len(paths)}")
    frame, notes = KINDS[kind][0](paths)
    frame = frame.fillna("-")
    frame = frame.drop(columns=[name for name in frame if frame[name].isin(["-", ""]).all()])
    align = ["left", *["right"] * (frame.shape[1] - 1)]
    text = frame.to_markdown(index=False, tablefmt="github", disable_numparse=True, colalign=align)
    links = [link(root / folder, place) for folder in folders]
    return f"{text}\n\n*{' · '.join([*notes, *measured_on(paths), *links])}*"


def behind(kind: str, folders: Sequence[str], root: Path) -> list[Path]:
    """Return the given folders, or those below them, that hold what a kind of table reads."""
    name = KINDS[kind][1]
    return [path.parent for folder in folders for path in sorted((root / folder).rglob(name))]


def made_by(path: Path) -> Mapping:
    """Return the recorded provenance of a folder; {} if there is none."""
    for name in RECORDS:
        if (path / name).exists():
            found = json.loads((path / name).read_text("utf-8"))
            found = found.get("provenance") or found.get("about", {}).get("provenance")
            if found:
                return found
    return {}


def stale(path: Path) -> str | None:
    """Return why a folder's figures may not be those of the present sources; None if they are."""
    made = made_by(path)
    if "sources" not in made:
        return "does not say which sources made it"
    if made["sources"] != sources_hash():
        return "made by sources that have changed since"
    return "made with uncommitted changes" if (made["git"] or {}).get("dirty") else None


def measured_on(paths: Sequence[Path]) -> list[str]:
    """Return machine, threads, dates and commits of some folders."""
    made = [found for path in paths if (found := made_by(path))]
    machines = [found["machine"] for found in made]
    names = {name for machine in machines for name in machine["gpus"] or [machine["cpu"]]}
    threads = {f"{m['threads']} thread{'s' * (m['threads'] > 1)}" for m in machines}
    days = sorted(found["time"][:10] for found in made)
    span = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "no date"
    commits = {
        found["git"]["commit"][:7] + " with changes" * found["git"]["dirty"]
        for found in made
        if found.get("git")
    }
    return [*sorted(names), *sorted(threads), span, f"commit {', '.join(sorted(commits)) or '-'}"]


def link(folder: Path, place: Path) -> str:
    """Return a link to a folder's report, or to the folder."""
    names = ("summary.md", "agreement.md", "tuning.md", "check.md")
    file = next((folder / name for name in names if (folder / name).exists()), folder)
    return f"[{folder.name}]({Path(os.path.relpath(file, place)).as_posix()})"


def check(page: Path, root: Path) -> int:
    """Print a line for each table of a page that differs from its folders, and a warning for stale
    folders; return the number of tables that differ."""
    text = page.read_text("utf-8")
    new = written(text, root, page.resolve().parent)
    reasons: dict[str, dict[str, None]] = {}
    wrong = 0
    for old, fresh in zip(MARKED.finditer(text), MARKED.finditer(new), strict=True):
        if old[2] != fresh[2]:
            wrong += 1
            print(
                f"error: {page.name}: the table <!-- results: {old[1]} --> is not what the folder "
                "gives: run make figures",
                file=sys.stderr,
            )
        kind, *folders = old[1].split()
        for path in behind(kind, folders, root):
            if why := stale(path):
                stage = Path(*path.relative_to(root).parts[:2]).as_posix()
                reasons.setdefault(why, {})[stage] = None
    for why, stages in reasons.items():
        print(f"warning: {page.name}: {', '.join(stages)}: {why}", file=sys.stderr)
    return wrong


def begin(folder: Path) -> None:
    """Move a folder of other sources to `BEFORE`; record the present sources in a new one."""
    if folder.exists() and made_by(folder).get("sources") != sources_hash():
        name = folder.as_posix().strip("/").replace("/", "-")
        names = (f"{name}-{count}" if count else name for count in itertools.count())
        aside = next(BEFORE / one for one in names if not (BEFORE / one).exists())
        BEFORE.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, aside)
        print(f"{folder}: results of other sources are now in {aside}", file=sys.stderr)
    if not (folder / MADE_BY).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MADE_BY).write_text(json.dumps({"provenance": provenance()}, indent=1) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pages = "default: README.md and docs/**/*.md"
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help=pages)
    parser.add_argument("--check", action="store_true", help="change nothing, name what differs")
    parser.add_argument("--begin", type=Path, metavar="FOLDER", help="prepare a results folder")
    args = parser.parse_args(words)
    if args.begin:
        begin(args.begin)
        return 0
    root, wrong = Path.cwd(), 0
    if not args.check:  # samples and trees are kept packed, beside the tables made of them
        for path in [
            *(root / "results").rglob("samples.jsonl"),
            *root.glob("results/**/trees.jsonl"),
        ]:
            if path.relative_to(root).parts[1] != "local":
                packed = gzip.compress(path.read_bytes(), mtime=0)
                path.with_name(f"{path.name}.gz").write_bytes(packed)
                path.unlink()
    for page in args.pages or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8")
        if not args.check:
            new = written(text, root, page.resolve().parent)
            if new != text:
                page.write_text(new, encoding="utf-8")
                print(f"wrote {page.name}", file=sys.stderr)
        wrong += check(page, root)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
