"""A user's own prompts: JSONL with a field "prompt", or any other text file as one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ouroboros.bench.tasks.source import LINES, Source, read_text
from ouroboros.bench.tasks.task import Example
from ouroboros.bench.tasks.template import Template, choose_template

TEMPLATES = {"plain": Template("{prompt}"), "chat": Template("{prompt}", chat=True)}


class Prompts:
    """Prompts from `path`. A line's "id", if given, names it; nothing is scored."""

    name = "prompts"
    licence = "the user's"
    max_new = 128

    def __init__(
        self, *, path: str | None, template: str = "plain", stop: Sequence[str] | None = None
    ) -> None:
        if not path:
            raise ValueError(
                'task=prompts needs task.path=<file>: JSONL with a field "prompt", or plain text'
            )
        self.source = Source(self.name, path, None, {"prompt": str})
        self.version = self.source.version
        self.path = self.source.file or Path(path)
        self.template = choose_template(TEMPLATES, template)
        self.stop: Sequence[str] = self.template.stops(stop)

    def load(self) -> list[Example]:
        """Return the prompts. Raises `ValueError`, naming file and line, where it cannot."""
        if self.path.suffix not in LINES:
            text = read_text(self.path)
            return [self.template.example(self.path.name, {"prompt": text}, {})] if text else []
        return [
            self.template.example(
                str(row.get("id", f"{self.path.stem}/{number}")), {"prompt": row["prompt"]}, {}
            )
            for number, row in enumerate(self.source.load(), start=1)
        ]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {}: a prompt of one's own has no reference."""
        return {}
