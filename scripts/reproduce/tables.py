"""Tables of README and docs, made from results/: what stands between two markers of a page.

    <!-- results: KIND FOLDER ... -->
    <!-- end -->

Invariant: what is written depends on the folders alone, so that a page can be held against them. A
line under each table says on which machine, when and at which commit it was measured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from page_tables import ALONE, KINDS, READ

from ouroboros.bench.report.cells import as_text
from ouroboros.bench.run.provenance import sources_hash
from ouroboros.bench.run.store import RUN

MARKED = re.compile(r"<!-- results: ([^\n]+?) -->\n(.*?)<!-- end -->", re.DOTALL)
TOLD_BY = (RUN, "agreement.json", "tuning.json", "evidence.json")
"""What says in a folder how it was made, the best first."""


def written(page: str, root: Path, place: Path) -> str:
    """Return a page with what stands between its markers made anew from the folders below `root`;
    `place` is the folder that its links start from. Raises `ValueError` for a marker that names
    nothing that can be made."""

    def made(found: re.Match) -> str:
        kind, *folders = found[1].split()
        if kind not in KINDS:
            raise ValueError(f"<!-- results: {found[1]} -->: choose from {', '.join(KINDS)}")
        return (
            f"<!-- results: {found[1]} -->\n\n{table(kind, folders, root, place)}\n\n<!-- end -->"
        )

    return MARKED.sub(made, page)


def table(kind: str, folders: Sequence[str], root: Path, place: Path) -> str:
    """Return one table and the line under it."""
    paths = behind(kind, folders, root)
    if not paths:
        stage = Path(folders[0]).parts[1]
        return f"*Not measured yet: `scripts/reproduce/{stage}.sh`.*"
    if kind in ALONE and len(paths) > 1:
        raise ValueError(f"results: {kind} {' '.join(folders)}: give one folder, not {len(paths)}")
    frame, said = KINDS[kind](paths)
    frame = frame.drop(columns=[name for name in frame if frame[name].isin(["-", ""]).all()])
    told = [*said, *about(paths), *(link(root / folder, place) for folder in folders)]
    return f"{as_text(frame)}\n\n*{' · '.join(told)}*"


def behind(kind: str, folders: Sequence[str], root: Path) -> list[Path]:
    """Return the folders, or those below them, that hold what a kind of table is made of."""
    file = READ.get(kind, "summary.json")
    return [path.parent for folder in folders for path in sorted((root / folder).rglob(file))]


def sources(page: str, root: Path) -> dict[Path, str]:
    """Return why each folder behind a page's tables is not the present code's; {} where all
    are."""
    found = (path for _, paths in folders(page, root) for path in paths)
    return {path: why for path in found if (why := stale(path))}


def folders(page: str, root: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the kind of each table of a page, and the folders that it is made of."""
    for marker in MARKED.finditer(page):
        kind, *named = marker[1].split()
        yield kind, behind(kind, named, root)


def stale(path: Path) -> str | None:
    """Return why a folder's figures are not those of the present sources, None where they are."""
    made = provenance_of(path)
    if "sources" not in made:
        return "it does not say by which sources it was made"
    if made["sources"] != sources_hash():
        return "made by sources that have changed since"
    return "made on a checkout with changes" if (made["git"] or {}).get("dirty") else None


def provenance_of(path: Path) -> Mapping:
    """Return how a folder was made, as it was recorded."""
    for name in TOLD_BY:
        if (path / name).exists():
            found = json.loads((path / name).read_text("utf-8"))
            found = found.get("provenance") or found.get("about", {}).get("provenance")
            if found:
                return found
    return {}


def about(paths: Sequence[Path]) -> list[str]:
    """Return machine, date and commit of what was measured."""
    made = [provenance_of(path) for path in paths]
    devices = [m["machine"]["gpus"] or [m["machine"]["cpu"]] for m in made if "machine" in m]
    cores = {
        f"{m['machine']['threads']} thread{'s' * (m['machine']['threads'] > 1)}"
        for m in made
        if "machine" in m
    }
    days = sorted(m["time"][:10] for m in made if "time" in m)
    commits = {
        m["git"]["commit"][:7] + (" with changes" * m["git"]["dirty"]) for m in made if m.get("git")
    }
    span = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "no date"
    named = sorted({name for own in devices for name in own})
    return [*named, *sorted(cores), span, f"commit {', '.join(sorted(commits)) or 'unknown'}"]


def link(folder: Path, place: Path) -> str:
    """Return a link to a folder's tables, or to the folder."""
    names = ("summary.md", "agreement.md", "tuning.md", "check.md")
    file = next((folder / name for name in names if (folder / name).exists()), folder)
    return f"[{folder.name}]({Path(os.path.relpath(file, place)).as_posix()})"
