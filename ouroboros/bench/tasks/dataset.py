"""Tasks made of rows: a local file or the Hugging Face hub, one prompt template per row.

Every error names the file and the line (or the row), and what to do. Each task has an option
`template` that names one of its prompt templates:

    plain           for base models, with stop strings
    chat            one user message, for the tokenizer's own chat template
    paper-<family>  word for word as in the published runs, which used no stop strings
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ouroboros.bench.tasks.sandbox import Execution
from ouroboros.bench.tasks.task import Example

BUNDLED = "examples"
"""As a path: the few rows that come with this project, for trying a task out."""
EXAMPLES = Path(__file__).with_name("examples")
LINES = (".jsonl", ".ndjson")
KINDS: dict[type, str] = {str: "non-empty text", int: "a whole number", list: "a list of texts"}
DEEPSEEK = (
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
    "Deepseek Company, and you only answer questions related to computer science. For politically "
    "sensitive questions, security and privacy issues, and other non-computer science questions, "
    "you will refuse to answer\n### Instruction:\n{instruction}\n### Response:\n"
)
"""The prompt format of the DeepSeek-coder instruct models."""
_FENCE = re.compile(r"```[^`\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_TAGGED = re.compile(r"\[PYTHON\](.*?)\[/PYTHON\]", re.DOTALL)
_BODY = re.compile(r"\n*(?: {2,}|\t)\S")


@dataclass(frozen=True)
class Template:
    """A prompt template: `text` names a row's fields in braces; `stop` are its stop strings.

    `instructs` marks a template for instruct models that needs no chat template. `opening` precedes
    the first turn of a conversation and `joint` every later one.
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
        """Return the example `name` with this template's prompt of `fields`."""
        prompt = self.text.format(**fields)
        messages = ({"role": "user", "content": prompt},) if self.chat else ()
        return Example(name, prompt, data, messages, group)


class DatasetTask:
    """The options that tasks share: where rows come from, which template, which stop strings.

    A subclass sets `fields`, what each row must hold: the type of each field, by its name or, in a
    nested field, by both names with a dot between. Without a `path`, rows are downloaded from `hub`
    (id, config, split), at a `revision` (a commit) if given; `needs_path` says what to give
    instead, for tasks that are on no hub.
    """

    name: ClassVar[str]
    licence: ClassVar[str]
    max_new: ClassVar[int]
    fields: ClassVar[Mapping[str, type]]
    templates: ClassVar[Mapping[str, Template]]
    hub: ClassVar[tuple[str, str, str] | None] = None
    needs_path: ClassVar[str] = ""

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
    ) -> None:
        if template not in self.templates:
            raise ValueError(
                f"task.template {template!r} is unknown here; choose one of "
                f"{', '.join(self.templates)}"
            )
        if not path and self.needs_path:
            raise ValueError(f"task={self.name} needs task.path={self.needs_path}")
        if revision and not self.hub:
            raise ValueError(f"task.revision={revision}, but task={self.name} is on no hub")
        self.template_name, self.template = template, self.templates[template]
        self.stop = self.template.stop if stop is None else tuple(stop)
        self.revision = revision
        self.file = Path(path) if path else None
        if path == BUNDLED:
            self.file = EXAMPLES / f"{self.name}.jsonl"

    @property
    def version(self) -> str:
        """What identifies the rows: the file's name and hash, or the hub's id and revision."""
        if self.file is None:
            assert self.hub is not None
            return f"{' '.join(self.hub)}, revision {self.revision or 'newest'}"
        digest = hashlib.sha256(b"".join(map(read_bytes, files_of(self.file))))
        return f"{self.file.name}, sha256 {digest.hexdigest()[:12]}"

    def rows(self) -> list[dict]:
        """Return the rows. Raises `ValueError` where they cannot be read or lack a field."""
        rows = read_rows(self.file) if self.file is not None else self._hub_rows()
        checked = []
        for where, row in rows:
            check_fields(row, self.fields, where)
            checked.append(row)
        return checked

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {}: nothing is scored."""
        return {}

    def _hub_rows(self) -> list[tuple[str, dict]]:
        from datasets import load_dataset

        assert self.hub is not None
        name, config, split = self.hub
        try:
            loaded = load_dataset(name, config, split=split, revision=self.revision)
        except Exception as error:
            raise ValueError(
                f"cannot load {name} from the hub ({type(error).__name__}): give "
                f"task.path=<file>, or task.path={BUNDLED} for a few rows to try out"
            ) from error
        return [(f"{name}, row {number}", dict(row)) for number, row in enumerate(loaded)]


class CodeTask(DatasetTask):
    """A task whose completions are code, scored by a problem's own tests.

    With `execute_code` completions run in a limited subprocess (`timeout_s`, `memory_mib`). They
    are untrusted code: execute them only where that is acceptable.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
        execute_code: bool = False,
        timeout_s: float = 3.0,
        memory_mib: int = 2048,
    ) -> None:
        super().__init__(path=path, revision=revision, template=template, stop=stop)
        self.execution = Execution(execute_code, timeout_s, memory_mib)

    def problem(self, row: Mapping) -> Mapping:
        """Return a row in the form of HumanEval's problems."""
        return row

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code may not be executed."""
        stop = self.stop or self.templates["plain"].stop
        code = code_of(completion, stop, fenced=self.template.chat or self.template.instructs)
        return self.execution.score(self.problem(example.data), code)


def before_stop(completion: str, stop: Sequence[str]) -> str:
    """Return the text up to the first stop string, with which a completion ends.

    >>> before_stop("Berlin.\\nQuestion: and", ["\\nQuestion:", "\\n\\n"])
    'Berlin.'
    """
    ends = [end for end in (completion.find(string) for string in stop) if end >= 0]
    return completion[: min(ends, default=len(completion))]


def code_of(completion: str, stop: Sequence[str], *, fenced: bool) -> str:
    """Return the code of a completion: its text up to a stop string or a closing fence.

    With `fenced`, answers may have prose around a fenced or tagged block: the first one is the
    code, unless the completion starts with indented code that continues the prompt's.

    >>> code_of("    return 1\\nprint(f())", ["\\nprint"], fenced=False)
    '    return 1'
    """
    block = _FENCE.search(completion) or _TAGGED.search(completion)
    if fenced and block and not _BODY.match(completion):
        return block[1]
    return before_stop(completion, [*stop, "\n```"])


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
    """Return a file's text. Raises `ValueError` where it is not readable UTF-8."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read task.path={path}: not UTF-8 text") from error


def read_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """Yield ("file, line", row) for each object of a JSONL file, or of a JSON file's list."""

    def parsed(text: str, where: str):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON") from error

    text = read_text(path)
    if path.suffix in LINES:
        lines = [(f"{path.name}, line {n}", x) for n, x in enumerate(text.split("\n"), start=1)]
        rows = ((where, parsed(line, where)) for where, line in lines if line.strip())
    else:
        found = parsed(text, path.name)
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
