"""The tables of README and docs, written from results/ or held against them: `ouroboros figures`.

What can be typed stands in `ouroboros.cli.arguments`, what a table is made of in
`ouroboros.bench.report.figures`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from ouroboros.bench.report.figures import MARKED, folders, sources, stale, written
from ouroboros.cli import CONF, place
from ouroboros.cli.evidencing.cases import cases


def figures(args: argparse.Namespace) -> int:
    """Write the tables, or say which are not what the folders give; return the exit code."""
    root, differing = Path.cwd(), 0
    pages = args.pages or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for path in pages:
        text = path.read_text("utf-8")
        new = written(text, root, path.resolve().parent)
        warn(path, sources(text, root) | strange(text, root))
        if args.check:
            differing += told(path, text, new)
        elif new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {place(path)}", file=sys.stderr)
    return int(differing > 0)


def warn(page: Path, found: Mapping[Path, str]) -> None:
    """Print a line for each reason why folders behind a page are not what they should be, those of
    a stage together."""
    for why in dict.fromkeys(found.values()):
        parts = [Path(place(folder)).parts[:2] for folder, own in found.items() if own == why]
        stages = ", ".join(Path(*part).as_posix() for part in dict.fromkeys(parts))
        print(f"warning: {place(page)}: {stages}: {why}", file=sys.stderr)


def strange(page: str, root: Path) -> dict[Path, str]:
    """Return why folders behind a page's tables, of the present sources, are not what their stage
    of conf/evidence.yaml makes."""
    table = yaml.safe_load(Path(CONF, "evidence.yaml").read_text("utf-8"))
    own = {root / case.out: case for case in cases(table)}
    found = (path for _, paths in folders(page, root) for path in paths)
    changed = [
        path
        for path in found
        if path in own and not stale(path) and own[path].standing() == "stale"
    ]
    return dict.fromkeys(changed, "its stage has other commands or settings now")


def told(path: Path, text: str, new: str) -> int:
    """Name each table of a page that is not what its folders give; return how many."""
    pairs = zip(MARKED.finditer(text), MARKED.finditer(new), strict=True)
    wrong = [old[1] for old, made in pairs if old[2] != made[2]]
    for marker in wrong:
        print(
            f"error: {place(path)}: the table <!-- results: {marker} --> is not what the folder "
            "gives: ouroboros figures writes it",
            file=sys.stderr,
        )
    return len(wrong)
