"""Your own prompts: lines of JSON, plain text, or a folder of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from ouroboros.bench.tasks.dataset import ROWS, DatasetTask, ending, files_of, read_text
from ouroboros.bench.tasks.task import Example

BETWEEN = re.compile(r"^---[ \t\r]*$", re.MULTILINE)


class Prompts(DatasetTask):
    """Prompts from `path`; nothing is scored.

    The path is a file of rows (JSONL, a JSON list, Parquet, CSV) with a field "prompt" and
    optionally "id", a text file, or a folder of .txt files. A text is one prompt, or several
    separated by lines `---`. All but Parquet may be compressed (.gz, .bz2, .xz).
    """

    name = "prompts"
    licence = "the user's"
    max_new = 128
    fields: ClassVar = {"prompt": str}
    needs_path = '<file or folder>: JSONL with a field "prompt", or plain text'

    def load(self) -> list[Example]:
        """Return the prompts. Raises `ValueError` with the file and line of invalid content."""
        assert self.file is not None
        if ending(self.file) in ROWS:
            named = []
            for number, row in enumerate(self.rows(), start=1):
                known = row.get("id") not in (None, "")
                name = str(row["id"]) if known else f"{self.file.stem}/{number}"
                named.append((name, row["prompt"]))
        else:
            texts = ((file.name, read_text(file)) for file in files_of(self.file))
            named = [part for name, text in texts for part in parts(name, text)]
        return [self.prompt.example(name, {"prompt": text}, {}) for name, text in named]


def parts(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, prompt) for each prompt of a text, in which lines `---` separate prompts.

    A text without such a line is one prompt, unchanged, or none if it is empty. Several prompts are
    named "<name>/<number>" and lose line breaks at both ends; blank ones are left out.

    >>> list(parts("a.txt", "one\\ntwo\\n---\\n\\nthree\\n"))
    [('a.txt/1', 'one\\ntwo'), ('a.txt/2', 'three')]
    """
    found = BETWEEN.split(text)
    if len(found) == 1:
        yield from [(name, text)] if text else []
        return
    kept = [prompt.strip("\r\n") for prompt in found if prompt.strip()]
    yield from ((f"{name}/{number}", prompt) for number, prompt in enumerate(kept, start=1))
