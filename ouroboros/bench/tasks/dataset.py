"""Base classes of tasks whose prompts are rows of a local file or of a Hugging Face data set.

A template (templates.yaml) turns a row into a prompt; the option `template` selects one by name.
Errors about a row name the file and the line, or the number of the row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import yaml
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

from ouroboros import conf
from ouroboros.bench.tasks.answers import code_of
from ouroboros.bench.tasks.sandbox import TIMED_OUT, check_sandbox, verdict
from ouroboros.bench.tasks.task import Example

BUNDLED = "examples"
"""The `path` that selects a few rows that ship with this project, to try out a task."""
AUTO = "auto"
"""The `template` that `TaskSpec.for_tokenizer` replaces."""
CHAT_MAX_NEW = 256
"""The default of `max_new` if the prompts use a chat template."""
EXAMPLES = Path(__file__).with_name("examples")
ROWS = (".json", ".jsonl", ".jsonlines", ".ndjson", ".parquet", ".csv")
"""The endings of files of rows; before an ending such as .gz, too."""
KINDS: dict[type, str] = {str: "non-empty text", int: "a whole number", list: "a list of texts"}


@dataclass(frozen=True)
class Template:
    """A prompt template.

    - `text`: the prompt, with the names of fields in braces
    - `stop`: the stop strings
    - `chat`: the prompt is one user message, formatted by the tokenizer's chat template
    - `instructs`: the text itself is an instruction (no chat template), so the answer may put its
      code in a fenced block
    - `opening`: text before the first turn of a conversation
    - `joint`: text between an answer and the next turn
    """

    text: str
    stop: tuple[str, ...] = ()
    chat: bool = False
    instructs: bool = False
    opening: str = ""
    joint: str = ""

    def example(
        self, name: str, fields: Mapping[str, str], data: Mapping[str, object], *, group: str = ""
    ) -> Example:
        """Return an example with the id `name` and the prompt filled in from `fields`; `data` and
        `group` are passed on (see `Example`)."""
        prompt = self.text.format(**fields)
        messages = ({"role": "user", "content": prompt},) if self.chat else ()
        return Example(name, prompt, data, messages, group)


@dataclass(kw_only=True)
class DatasetTask:
    """Base class of tasks whose prompts are rows of data. Options select the data, the template and
    the stop strings (None: the template's). `template_args` are arguments of the tokenizer's chat
    template, such as {"enable_thinking": False}; those that are None are not passed.

    A subclass sets `fields`: the type of each required field by name ("a.b" for a nested field).
    `aliases` has other names of fields: {"text": "prompt"} reads "prompt" if a row has no "text".
    Without a `path`, rows are downloaded from `hub` (id, config, split), at the commit `revision`
    if given. A task without `hub` needs a `path`; `needs_path` describes that file.
    """

    name: ClassVar[str]
    licence: ClassVar[str]
    fields: ClassVar[Mapping[str, type]]
    aliases: ClassVar[Mapping[str, str]] = {}
    hub: ClassVar[tuple[str, str, str] | None] = None
    needs_path: ClassVar[str] = ""

    path: str | None = None
    revision: str | None = None
    template: str = "plain"
    template_args: Mapping = field(default_factory=dict)
    stop: Sequence[str] = None  # type: ignore[assignment]  # the template's
    max_new: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.template not in self.templates:
            known = ", ".join(self.templates)
            raise ValueError(f"task.template {self.template!r} is unknown: choose one of {known}")
        if not self.path and self.needs_path:
            raise ValueError(f"task={self.name} needs task.path={self.needs_path}")
        if self.revision and (self.path or not self.hub):
            source = "has a path" if self.path else "is on no hub"
            raise ValueError(
                f"task.revision={self.revision}, but task={self.name} {source}: leave it out"
            )
        given = self.template_args.items()
        self.template_args = {name: value for name, value in given if value is not None}
        if self.template_args and not self.prompt.chat:
            raise ValueError(
                f"task.template_args={self.template_args} needs a chat template, but "
                f"task.template={self.template}: leave it out, or give an instruct model"
            )
        if self.prompt.chat:
            self.max_new = CHAT_MAX_NEW
        self.stop = self.prompt.stop if self.stop is None else self.stop

    @cached_property
    def templates(self) -> Mapping[str, Template]:
        """The templates by name: those of templates.yaml, unless a subclass sets its own."""
        found = yaml.safe_load(Path(__file__).with_name("templates.yaml").read_text("utf-8"))
        parts = found[self.name].items()
        return {k: Template(**{**v, "stop": tuple(v.get("stop", ()))}) for k, v in parts}

    @property
    def prompt(self) -> Template:
        """The selected prompt template."""
        return self.templates[self.template]

    @property
    def file(self) -> Path | None:
        """The file or folder of the rows; None if they come from the hub."""
        if self.path == BUNDLED:
            return EXAMPLES / f"{self.name}.jsonl"
        return found_path(self.path) if self.path else None

    @property
    def version(self) -> str:
        """The identity of the rows: the file's name and hash, or the hub id and revision."""
        if self.file is None:
            return f"{' '.join(self.hub or ())}, revision {self.revision or 'newest'}"
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files_of(self.file)))
        return f"{self.file.name}, sha256 {digest.hexdigest()[:12]}"

    def rows(self) -> list[dict]:
        """Return the rows of the file or, without a path, of the hub's data set.

        Raises `ValueError` if they cannot be read or loaded, or if a row lacks one of `fields`.
        """
        if self.file is not None:
            rows = list(read_rows(self.file))
        else:
            from datasets import load_dataset

            name, config, split = self.hub  # type: ignore[misc]
            try:
                loaded = load_dataset(name, config, split=split, revision=self.revision)
            except Exception as error:
                raise ValueError(
                    f"cannot load {name} from the hub ({type(error).__name__}): give "
                    f"task.path=<file>, or task.path={BUNDLED} for a few rows to try out"
                ) from error
            rows = [(f"{name}, row {number}", dict(row)) for number, row in enumerate(loaded)]
        for where, row in rows:
            for own, other in self.aliases.items():
                if other in row:
                    row.setdefault(own, row[other])
            check_fields(row, self.fields, where)
        return [row for _, row in rows]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {}: nothing is scored unless a subclass overrides this."""
        return {}


@dataclass(kw_only=True)
class CodeTask(DatasetTask):
    """A task whose completions are code, scored by the problem's tests.

    With `execute_code`, completions run in a subprocess with limits (`timeout_s`, `memory_mib`).
    They are untrusted code: execute them only where that is acceptable.
    """

    execute_code: bool = False
    timeout_s: float = 3.0
    memory_mib: int = 2048

    def problem(self, row: Mapping) -> Mapping:
        """Return a row as a HumanEval problem (task_id, prompt, test, entry_point): unchanged."""
        return row

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return "passed" and "timed_out", each 1.0 or 0.0, or {} if code may not be executed.
        Raises `ValueError` if programs cannot be judged here."""
        if not self.execute_code:
            return {}
        check_sandbox(self.timeout_s, self.memory_mib)
        stop, answers = self.stop or self.templates["plain"].stop, self.prompt
        problem = self.problem(example.data)
        # A problem without a prompt names its function in its tests alone.
        named = problem["entry_point"] if problem["prompt"] else problem["test"]
        code = code_of(
            completion,
            stop,
            fenced=answers.chat or answers.instructs,
            prompt=problem["prompt"],
            names=set(re.findall(r"\w+", named)),
        )
        found = verdict(problem, code, self.timeout_s, self.memory_mib)
        return {"passed": float(found == "passed"), "timed_out": float(found == TIMED_OUT)}


def found_path(path: str) -> Path:
    """Return `path`, or the copy installed with this package if `path` starts with conf/ and does
    not exist here."""
    here = Path(path)
    shipped = conf.FOLDER.joinpath(*here.parts[1:])
    return shipped if here.parts[:1] == ("conf",) and not here.exists() else here


def files_of(path: Path) -> list[Path]:
    """Return the .txt files of a folder, sorted by name (`ValueError` if it has none), or [path] if
    it is not a folder."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if ending(file) == ".txt")
    if not files:
        raise ValueError(f"task.path={path} is a folder without .txt files: give a prompt in each")
    return files


def ending(path: Path) -> str:
    """Return the ending of a file's name in lower case, without the ending of a compression.

    >>> ending(Path("mine.JSONL.gz"))
    '.jsonl'
    """
    return Path(path.stem if infer_compression(str(path)) else path).suffix.lower()


def read_text(path: Path) -> str:
    """Return a file's text, decompressed, line ends unchanged, without a byte-order mark. Raises
    `ValueError` if it cannot be read or is not UTF-8."""
    try:
        with LocalFileSystem().open(str(path), compression="infer") as file:
            return file.read().decode("utf-8-sig")
    except Exception as error:  # damaged archives raise all kinds
        raise ValueError(f"cannot read {path} ({error}): give a file of UTF-8 text") from error


def read_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """Yield ("<file>, line <n>", row) for each object of a JSONL file, ("<file>, row <n>", row) for
    a list in a JSON file, a Parquet or a CSV file. Raises `ValueError` for other content."""
    where, unit = path.name, "row"
    rows: Iterable[Any]
    try:
        if ending(path) == ".parquet":
            from pyarrow.parquet import read_table

            try:
                rows = read_table(path).to_pylist()
            except (OSError, ValueError) as error:
                raise ValueError(f"cannot read {path} ({error}): give a Parquet file") from error
        elif ending(path) == ".csv":
            rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
        elif (text := read_text(path)).lstrip().startswith("["):
            rows = json.loads(text)
        else:
            rows, unit = text.split("\n"), "line"
        for number, row in enumerate(rows, start=1):
            where = f"{path.name}, {unit} {number}"
            if unit == "line" and not row.strip():
                continue
            found = json.loads(row) if unit == "line" else row
            if not isinstance(found, dict):
                raise ValueError(f"{where}: not a JSON object")
            yield where, found
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON: give an object per line, or one list") from error


def check_fields(row: Mapping, fields: Mapping[str, type], where: str) -> None:
    """Raise `ValueError` for the first of `fields` (types by name) that is missing in the row, is
    empty or has another type. `where` is the row's location, for the error."""
    for name, kind in fields.items():
        value: object = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        fits = isinstance(value, kind) and value not in ("", [])
        if isinstance(value, list):
            fits = fits and all(isinstance(item, str) for item in value)
        if not fits:
            there = "" if name.split(".")[0] in row else f"; it has {', '.join(row) or 'no field'}"
            raise ValueError(f'{where}: its field "{name}" must be {KINDS[kind]}{there}')
