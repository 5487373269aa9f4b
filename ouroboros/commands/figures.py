"""The tables of README and docs, written from results/ or held against them: `ouroboros figures`.

What can be typed stands in `ouroboros.commands.arguments`, what a table is made of in
`ouroboros.bench.report.figures`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ouroboros.bench.report.figures import MARKED, sources, written
from ouroboros.commands import place


def figures(args: argparse.Namespace) -> int:
    """Write the tables, or say which are not what the folders give; return the exit code."""
    root, differing = Path.cwd(), 0
    pages = args.pages or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for path in pages:
        text = path.read_text("utf-8")
        new = written(text, root, path.resolve().parent)
        for folder, why in sources(text, root).items():
            print(f"warning: {place(path)}: {place(folder)}: {why}", file=sys.stderr)
        if args.check:
            differing += told(path, text, new)
        elif new != text:
            path.write_text(new, encoding="utf-8")
            print(f"wrote {place(path)}", file=sys.stderr)
    return int(differing > 0)


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
