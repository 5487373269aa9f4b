"""A user's own prompts: JSONL with a field "prompt", or any other text file as one prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ouroboros.bench.task import Example


class Prompts:
    """Prompts from `path`. A line's "id", if given, names it; nothing is scored."""

    name = "prompts"
    version = "user file"
    licence = "the user's"
    max_new = 128

    def __init__(self, *, path: str | None, stop: Sequence[str] | None = None) -> None:
        if not path:
            raise ValueError(
                'task=prompts needs task.path=<file>: JSONL with a field "prompt", or plain text'
            )
        self.path = Path(path)
        self.stop = tuple(stop or ())

    def load(self) -> list[Example]:
        """Return the prompts. Raises `ValueError`, naming file and line, where it cannot."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ValueError(f"cannot read task.path={self.path}: {reason}") from error
        if self.path.suffix not in (".jsonl", ".ndjson"):
            return [Example(self.path.name, text)] if text else []
        lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
        examples = [self._example(number, line) for number, line in lines]
        if len({e.id for e in examples}) < len(examples):
            raise ValueError(f"{self.path.name}: two prompts have the same id")
        return examples

    def _example(self, number: int, line: str) -> Example:
        try:
            row = json.loads(line)
            prompt = row["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f'{self.path.name}, line {number}: not a JSON object with a field "prompt"'
            ) from error
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f'{self.path.name}, line {number}: "prompt" must be non-empty text')
        return Example(str(row.get("id", f"{self.path.stem}/{number}")), prompt)

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {}: a prompt of one's own has no reference."""
        return {}
