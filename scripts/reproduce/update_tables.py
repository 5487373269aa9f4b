"""Write the tables of README and docs from results/, or check that they match results/.

    python scripts/reproduce/update_tables.py             write them (make tables)
    python scripts/reproduce/update_tables.py --check     change nothing; exit 1 if a table differs
    python scripts/reproduce/update_tables.py --begin FOLDER     prepare a folder for new results

A table is between two markers on a page:

    <!-- results: KIND FOLDER ... -->
    <!-- end -->

A table depends only on its folders, so numbers edited by hand are detected. The line below a table
has machine, date and commit of the measurements. If the code has changed since, there is a warning.
`--begin` moves results of older code to results/local/before and records the current code.
"""

from __future__ import annotations

import itertools
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path

from published_tables import KINDS

from ouroboros.bench.run.identity import provenance

MARKED = re.compile(r"<!-- results: ([^\n]+?) -->\n(.*?)<!-- end -->", re.DOTALL)
BEFORE = Path("results", "local", "before")
MADE_BY = "provenance.json"
RECORDS = ("run.json", MADE_BY)
"""Files with the provenance of a folder; the first that exists is used."""
CODE = Path(__file__).parents[2]
SAMPLED_BY = (
    "ouroboros",
    "baselines",
    "conf/decoder",
    ":!ouroboros/cli",
    ":!ouroboros/bench/report",
)


def table(marker: str, root: Path, place: Path) -> str:
    """Return the Markdown table and caption for a `<!-- results: ... -->` marker; links are
    relative to `place`."""
    kind, *folders = marker.split()
    if kind not in KINDS:
        raise ValueError(f"<!-- results: {marker} -->: choose from {', '.join(KINDS)}")
    paths = folders_of(marker, root)
    if not paths:
        return f"*Not measured yet: `scripts/reproduce/all.sh {Path(folders[0]).parts[1]}`.*"
    frame, notes = KINDS[kind](*paths)
    frame = frame.fillna("-").loc[:, lambda table: ~table.isin(["-", ""]).all()]
    align = ["left", *["right"] * (frame.shape[1] - 1)]
    text = frame.to_markdown(index=False, tablefmt="pipe", disable_numparse=True, colalign=align)
    shown = root / os.path.commonpath(folders)
    shown = shown / "summary.md" if (shown / "summary.md").exists() else shown
    link = f"[more]({Path(os.path.relpath(shown, place)).as_posix()})"
    return f"{text}\n\n*{' · '.join([*notes, *measured_on(paths), link])}*"


def folders_of(marker: str, root: Path) -> list[Path]:
    """Return the folders of runs in or below a marker's folders."""
    _, *folders = marker.split()
    return [path.parent for f in folders for path in sorted((root / f).rglob("summary.json"))]


def made_by(path: Path) -> Mapping:
    """Return the recorded provenance of a folder; {} if there is none."""
    for name in RECORDS:
        if (path / name).exists():
            found = json.loads((path / name).read_text("utf-8"))
            if found := found.get("provenance"):
                return found
    return {}


def stale(path: Path) -> str | None:
    """Return why a folder's results may not be those of the current code; None if they are."""
    git = made_by(path).get("git")
    if not git:
        return "does not say which commit made it"
    if changed_since(git["commit"]):
        return "made by code that has changed since"
    return "made with uncommitted changes" if git["dirty"] else None


def changed_since(commit: str) -> bool:
    """Return whether the code that samples depend on differs from a commit's, which may be unknown
    here."""
    command = ["git", "-C", str(CODE), "diff", "--quiet", commit, "--", *SAMPLED_BY]
    return bool(subprocess.run(command, capture_output=True).returncode)


def measured_on(paths: Sequence[Path]) -> list[str]:
    """Return the processors, threads, dates and commits of folders, as texts for a caption."""
    made = [found for path in paths if (found := made_by(path))]
    machines = [found["machine"] for found in made]
    names = {name for machine in machines for name in machine["gpus"] or [machine["cpu"]]}
    threads = {f"{m['threads']} thread{'s' * (m['threads'] > 1)}" for m in machines}
    days = sorted(found["time"][:10] for found in made) or ["no date"]
    git = [found["git"] for found in made if found.get("git")]
    commits = {one["commit"][:7] + " with changes" * one["dirty"] for one in git}
    span = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return [*sorted(names), *sorted(threads), span, f"commit {', '.join(sorted(commits)) or '-'}"]


def update(page: Path, root: Path, *, write: bool) -> int:
    """Rewrite a page's tables; without `write`, report tables that differ and return their number.
    Warn about stale folders, with one line per reason."""
    text, place = page.read_text("utf-8"), page.resolve().parent
    reasons: dict[str, dict[str, None]] = {}
    wrong = 0
    for found in MARKED.finditer(text):
        new = f"<!-- results: {found[1]} -->\n\n{table(found[1], root, place)}\n\n<!-- end -->"
        text = text.replace(found[0], new)
        if new != found[0] and not write:
            wrong += 1
            reason = "is not what the folder gives: run make tables"
            print(f"error: {page.name}: results: {found[1]} {reason}", file=sys.stderr)
        for path in folders_of(found[1], root):
            if why := stale(path):
                stage = Path(*path.relative_to(root).parts[:2]).as_posix()
                reasons.setdefault(why, {})[stage] = None
    for why, stages in reasons.items():
        print(f"warning: {page.name}: {', '.join(stages)}: {why}", file=sys.stderr)
    if write and text != page.read_text("utf-8"):
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.name}", file=sys.stderr)
    return wrong


def begin(folder: Path) -> None:
    """Move a folder made by older code to `BEFORE`; record the current code in a new folder."""
    git = made_by(folder).get("git")
    if folder.exists() and not (git and not changed_since(git["commit"])):
        name = folder.as_posix().strip("/").replace("/", "-")
        names = (f"{name}-{count}" if count else name for count in itertools.count())
        aside = next(BEFORE / one for one in names if not (BEFORE / one).exists())
        BEFORE.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, aside)
        print(f"{folder}: results of other code are now in {aside}", file=sys.stderr)
    if not (folder / MADE_BY).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MADE_BY).write_text(json.dumps({"provenance": provenance()}, indent=1) + "\n")


def pack(results: Path) -> None:
    """Compress the .jsonl files of published results, with times in whole microseconds; of runs
    that were not timed, without times and draft trees. Leave results/local unchanged."""
    for path in results.rglob("*.jsonl"):
        if path.relative_to(results).parts[0] != "local":
            counted = any('"timing": false' in r.read_text() for r in path.parent.glob("run.json"))
            times = "0.0" if counted else lambda match: f"{round(float(match[0]), 6)}"
            text = re.sub(r'(?<=_s": )[\d.e-]+', times, path.read_text("utf-8"))
            if not counted or path.name != "trees.jsonl":
                path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(text.encode()))
            path.unlink()


def main(words: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, name what differs")
    parser.add_argument("--begin", type=Path, metavar="FOLDER", help="prepare a results folder")
    args = parser.parse_args(words)
    if args.begin:
        begin(args.begin)
        return 0
    root = Path.cwd()
    if not args.check:
        pack(root / "results")
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return int(sum([update(page, root, write=not args.check) for page in pages]) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
