"""The corpus of the reference pair, built from what any machine can install.

Sources: the running interpreter's standard library, a folder of permissively licensed wheels
(their Python source, and the prose of their metadata and documentation files), and GSM8K's
*train* split in the form of the benchmark's worked examples. Exact duplicates are dropped, and
so is every document that shares 13 consecutive words with a held-out benchmark.

Invariant: no document of the returned corpus shares a 13-gram with a `forbidden` text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import sys
import sysconfig
import textwrap
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from email.parser import Parser
from pathlib import Path

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|Unlicense|HPND|Zlib|CNRI|0BSD)\b", re.I
)
COPYLEFT = re.compile(r"GPL|LGPL|MPL|Mozilla|CDDL|EUPL|Creative Commons|proprietary", re.I)
PROSE_SUFFIXES = (".md", ".rst", ".txt")
NGRAM = 13


@dataclass(frozen=True)
class Document:
    """One text with its kind: `function`, `module`, `prose` or `math`."""

    kind: str
    text: str


@dataclass
class Manifest:
    """Where a corpus came from and what was left out, for the model card."""

    packages: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    characters: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    overlapping: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def licence_of(metadata: str) -> tuple[str, str, str]:
    """Return (name, version, licence) of a wheel's METADATA; the licence is "" if none is named."""
    head = Parser().parsestr(metadata)
    classifiers = [c for c in head.get_all("Classifier", []) if c.startswith("License ::")]
    named = head.get("License-Expression") or " ".join(c.split("::")[-1] for c in classifiers)
    return head["Name"], head["Version"], (named or (head.get("License") or "")[:80]).strip()


def wheel_documents(wheel: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of one wheel, or nothing where its licence is not permissive."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata_name = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(metadata_name).decode("utf-8", "replace")
        name, version, licence = licence_of(metadata)
        row = {"name": name, "version": version, "licence": licence}
        if not PERMISSIVE.search(licence) or COPYLEFT.search(licence):
            manifest.skipped.append(row)
            return
        manifest.packages.append(row)
        yield "README.md", str(Parser().parsestr(metadata).get_payload())
        for entry in names:
            if entry.endswith((".py", *PROSE_SUFFIXES)) and "dist-info" not in entry:
                yield entry, archive.read(entry).decode("utf-8", "ignore")


def stdlib_documents(manifest: Manifest, limit: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) of the interpreter's own library, its test suite left out; at most
    `limit` files."""
    version = ".".join(map(str, sys.version_info[:3]))
    manifest.packages.append({"name": "python", "version": version, "licence": "PSF-2.0"})
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
    files = [p for p in sorted(root.rglob("*.py")) if not left_out & set(p.relative_to(root).parts)]
    for path in files[:limit]:
        yield path.name, path.read_text("utf-8", "ignore")


def functions_of(source: str, *, max_chars: int = 1600, max_lines: int = 40) -> Iterator[str]:
    """Yield the short documented functions of a module, each standing alone at column 0."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node):
            continue
        if len(node.body) < 2:
            continue
        text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        assert node.end_lineno is not None, "parsed from text, so it has one"
        body_lines = node.end_lineno - node.body[1].lineno + 1
        if len(text) <= max_chars and body_lines <= max_lines and text.startswith("def "):
            yield text.rstrip() + "\n"


def gsm8k_documents(path: Path, *, per_document: int = 8, seed: int = 0) -> Iterator[str]:
    """Yield documents of worked GSM8K examples, `per_document` in a row, calculator marks
    removed."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    random.Random(seed).shuffle(rows)
    for start in range(0, len(rows), per_document):
        yield "".join(_worked_example(row) for row in rows[start : start + per_document])


def _worked_example(row: dict[str, str]) -> str:
    reasoning, number = re.sub(r"<<[^>]*>>", "", row["answer"]).rsplit("####", 1)
    steps = " ".join(reasoning.split())
    return f"Question: {row['question']}\nAnswer: {steps}\nThe answer is {number.strip()}.\n\n"


def ngrams(text: str) -> set[int]:
    """Return the hashes of a text's 13-grams of words, case folded, punctuation ignored."""
    words = re.findall(r"\w+", text.lower())
    return {hash(tuple(words[i : i + NGRAM])) for i in range(len(words) - NGRAM + 1)}


def build(
    wheels: Iterable[Path],
    gsm8k_train: Path | None,
    forbidden: Iterable[str],
    *,
    stdlib_files: int | None = None,
) -> tuple[list[Document], Manifest]:
    """Collect, deduplicate and filter the corpus.

    `forbidden` are benchmark texts; a document sharing a 13-gram with one is dropped and counted.
    `stdlib_files` limits how much of the standard library is read (None: all of it).
    """
    manifest = Manifest()
    banned: set[int] = set().union(*(ngrams(text) for text in forbidden))
    seen: set[bytes] = set()
    kept: list[Document] = []

    def add(kind: str, text: str) -> None:
        key = hashlib.blake2b("".join(text.split()).encode("utf-8", "ignore"), digest_size=12)
        if key.digest() in seen:
            manifest.duplicates += 1
            return
        seen.add(key.digest())
        if banned and not banned.isdisjoint(ngrams(text)):
            manifest.overlapping += 1
            return
        kept.append(Document(kind, text))
        manifest.counts[kind] = manifest.counts.get(kind, 0) + 1
        manifest.characters[kind] = manifest.characters.get(kind, 0) + len(text)

    def add_file(name: str, text: str) -> None:
        if not 200 <= len(text) <= 200_000 or max(map(len, text.splitlines()), default=0) > 1000:
            return
        if not name.endswith(".py"):
            return add("prose", text)
        for function in functions_of(text):
            add("function", function)
        if "/test" not in name and not Path(name).name.startswith("test_"):
            add("module", text)

    for name, text in stdlib_documents(manifest, stdlib_files):
        add_file(name, text)
    for wheel in sorted(wheels):
        for name, text in wheel_documents(wheel, manifest):
            add_file(name, text)
    for text in gsm8k_documents(gsm8k_train) if gsm8k_train else ():
        add("math", text)
    return kept, manifest
