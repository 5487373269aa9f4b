"""Rows of a data set: a local JSONL or JSON file, or the Hugging Face hub.

Every error names the file and the line (or the row), and what to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ouroboros.bench.tasks.template import Template, choose_template

BUNDLED = "examples"
"""As a path: the few examples of this project's own making, for trying a task out."""
EXAMPLES = Path(__file__).with_name("examples")
LINES = (".jsonl", ".ndjson")
KINDS: dict[type, str] = {str: "non-empty text", int: "a whole number", list: "a list of texts"}


@dataclass(frozen=True)
class Hub:
    """A data set on the hub; `revision` None is its newest, a commit pins it."""

    id: str
    config: str
    split: str
    revision: str | None = None

    def rows(self) -> list[dict]:
        """Download (or take from the local cache) and return the rows.

        Raises `ValueError` where that is not possible, whatever the reason.
        """
        from datasets import load_dataset

        try:
            loaded = load_dataset(self.id, self.config, split=self.split, revision=self.revision)
        except Exception as error:
            raise ValueError(
                f"cannot load {self.id} from the hub ({type(error).__name__}): give "
                f"task.path=<file>, or task.path={BUNDLED} for a few rows to try out"
            ) from error
        return [dict(row) for row in loaded]

    def __str__(self) -> str:
        return f"{self.id} {self.config} {self.split}, revision {self.revision or 'newest'}"


@dataclass(frozen=True)
class Source:
    """Where the task `name` has its rows from: `path` if given, else the `hub`.

    `fields` says what each row must hold: the type of each field, by its name or, inside another
    field, by both with a dot between.
    """

    name: str
    path: str | None
    hub: Hub | None
    fields: Mapping[str, type]

    @property
    def file(self) -> Path | None:
        """The local file, if it is one."""
        if self.path == BUNDLED:
            return EXAMPLES / f"{self.name}.jsonl"
        return Path(self.path) if self.path else None

    @property
    def version(self) -> str:
        """What identifies the rows: the file's name and hash, or the hub's id and revision."""
        if self.file is None:
            return str(self.hub)
        digest = hashlib.sha256(b"".join(map(read_bytes, files_of(self.file))))
        return f"{self.file.name}, sha256 {digest.hexdigest()[:12]}"

    def load(self) -> list[dict]:
        """Return the rows. Raises `ValueError` for a file that cannot be read or lacks a field."""
        if self.file is not None:
            rows = list(read_rows(self.file))
        elif self.hub is not None:
            rows = [(f"{self.hub.id}, row {n}", row) for n, row in enumerate(self.hub.rows())]
        else:
            raise ValueError(f"task={self.name} needs task.path=<file>")
        for where, row in rows:
            check_fields(row, self.fields, where)
        return [row for _, row in rows]


class HubTask:
    """The options of a task whose prompts are one template each.

    A subclass says where its rows are (id, config, split), what each must hold
    and which wordings there are.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[str, str, str]]
    fields: ClassVar[Mapping[str, type]]
    templates: ClassVar[Mapping[str, Template]]

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
    ) -> None:
        self.source = Source(self.name, path, Hub(*self.rows, revision), self.fields)
        self.version = self.source.version
        self.template = choose_template(self.templates, template)
        self.stop = self.template.stops(stop)


def files_of(path: Path) -> list[Path]:
    """Return a file, or the .txt files of a folder by name. Raises `ValueError` without any."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"task.path={path} is a folder without .txt files: give a prompt in each")
    return files


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises `ValueError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read task.path={path}: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Return a file's text. Raises `ValueError` where it is no readable UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read task.path={path}: not UTF-8 text") from error


def read_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """Yield ("file, line", row) for each object of a JSONL file, or of a JSON file's one list."""
    text = read_text(path)
    if path.suffix in LINES:
        lines = enumerate(text.split("\n"), start=1)
        numbered: Sequence = [(f"{path.name}, line {n}", line) for n, line in lines if line.strip()]
        rows = ((where, _parsed(line, where)) for where, line in numbered)
    else:
        found = _parsed(text, path.name)
        if not isinstance(found, list):
            raise ValueError(f"{path.name}: not a JSON list of objects")
        rows = ((f"{path.name}, row {n}", row) for n, row in enumerate(found, start=1))
    for where, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{where}: not a JSON object")
        yield where, row


def check_fields(row: Mapping, fields: Mapping[str, type], where: str) -> None:
    """Raise `ValueError` for the first field that is missing or of another type."""
    for name, kind in fields.items():
        value: object = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        fits = isinstance(value, kind) and value not in ("", [])
        if fits and isinstance(value, list):
            fits = all(isinstance(item, str) for item in value)
        if not fits:
            there = "" if name.split(".")[0] in row else f"; it has {', '.join(row) or 'no field'}"
            raise ValueError(f'{where}: its field "{name}" must be {KINDS[kind]}{there}')


def _parsed(text: str, where: str):
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON") from error
