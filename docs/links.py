"""MkDocs hook: make README the home page, and include files outside of docs/ that pages link to.

Links are written as they work in the repository. A linked file (results, configs, sources) gets its
repository path in the site; files that a linked Markdown file links to are included too. The
glossary's table of metrics is made from the registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from ouroboros.bench.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
METRICS_HERE = "<!-- metrics -->"
SHOWN = {".py": "python", ".yaml": "yaml", ".txt": "text", ".json": "json"}


def place(path: Path) -> str:
    """Return the path in the site of a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    return name.removeprefix("docs/") + (".md" if path.suffix in SHOWN else "")


def linked(path: Path) -> Iterator[Path]:
    """Yield the existing files and folders that a Markdown file links to."""
    for match in LINK.finditer(path.read_text("utf-8")):
        target = Path(os.path.normpath(path.parent / match[2]))
        if target.exists() and target.is_relative_to(ROOT):
            yield target


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page and, following links, all files outside of docs/."""
    ahead = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "results" / "LOG.md"]
    ahead += [Path(file.abs_src_path or "") for file in files.documentation_pages()]
    seen: set[Path] = set()
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.is_dir():
            files.append(File.generated(config, f"{place(path)}/index.md", content=listing(path)))
        elif not path.is_relative_to(ROOT / "docs"):
            files.append(generated(path, config))
        if path.suffix == ".md":
            ahead += linked(path)
    return files


def generated(path: Path, config: MkDocsConfig) -> File:
    """Return a file of the repository as a file of the site; text becomes a page."""
    if path.suffix in SHOWN:
        text = path.read_text("utf-8")
        content = f"# {path.relative_to(ROOT)}\n\n````{SHOWN[path.suffix]}\n{text}\n````\n"
        return File.generated(config, place(path), content=content)
    return File.generated(config, place(path), abs_src_path=str(path))


def listing(folder: Path) -> str:
    """Return a page that lists the files of a folder."""
    names = sorted(f"- {path.name}" for path in folder.iterdir() if path.name[0] != ".")
    return "\n".join([f"# {folder.relative_to(ROOT)}", "", *names, ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links for the site; add the table of metrics to the glossary."""
    uri = page.file.src_uri
    if uri == "glossary.md":
        columns = ["name", "heading", "better", "definition"]
        table = pd.DataFrame(map(vars, METRICS.values()))[columns]
        table["name"] = "`" + table["name"] + "`"
        markdown = markdown.replace(METRICS_HERE, table.to_markdown(index=False))
    source = ROOT / "README.md" if uri == "index.md" else ROOT / uri
    if not source.exists():
        source = ROOT / "docs" / uri

    def moved(match: re.Match) -> str:
        target = Path(os.path.normpath(source.parent / match[2]))
        if not target.exists():
            return match[0]
        found = place(target) + ("/index.md" if target.is_dir() else "")
        return match[1] + os.path.relpath(found, Path(uri).parent) + match[3]

    return LINK.sub(moved, markdown)
