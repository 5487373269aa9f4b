"""The tables of README and docs, written from results/ or held against them: `ouroboros figures`.

What can be typed stands in `ouroboros.cli.arguments`, what a table is made of in
`ouroboros.bench.report.figures`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tables import MARKED, sources, written

from ouroboros.cli import place


def figures(args: argparse.Namespace) -> int:
    """Write the tables, or say which are not what the folders give; return the exit code."""
    root, differing = Path.cwd(), 0
    pages = args.pages or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    for path in pages:
        text = path.read_text("utf-8")
        new = written(text, root, path.resolve().parent)
        warn(path, sources(text, root))
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


def told(path: Path, text: str, new: str) -> int:
    """Name each table of a page that is not what its folders give; return how many."""
    pairs = zip(MARKED.finditer(text), MARKED.finditer(new), strict=True)
    wrong = [old[1] for old, made in pairs if old[2] != made[2]]
    for marker in wrong:
        print(
            f"error: {place(path)}: the table <!-- results: {marker} --> is not what the folder "
            "gives: make figures writes it",
            file=sys.stderr,
        )
    return len(wrong)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pages = "default: README.md and docs/**/*.md"
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help=pages)
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    return parser


if __name__ == "__main__":
    raise SystemExit(figures(parser().parse_args()))
