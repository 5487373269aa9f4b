"""MBPP, mostly basic Python problems (Austin et al. 2021, https://arxiv.org/abs/2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ouroboros.bench.tasks.dataset import CodeTask
from ouroboros.bench.tasks.task import Example

SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""The task_ids of each split."""
WORKED = 3
SOLVED = "- Example {n}:\n{problem}\n>>> Code:\n```python\n{code}\n```"


@dataclass(kw_only=True)
class MBPP(CodeTask):
    """974 short Python functions to write. CC-BY-4.0.

    `split` "validation" has the 90 problems of the published runs. The first three of the split
    "prompt" are the few-shot examples. Scored with `execute_code`: pass@1 (see `CodeTask`). The hub
    id is google-research-datasets/mbpp, config full; `path` is its JSONL, or sanitized-mbpp.json
    (427 of the problems, with the field "prompt" for "text").
    """

    name = "mbpp"
    licence = "CC-BY-4.0"
    max_new = 256
    hub = ("google-research-datasets/mbpp", "full", "+".join(SPLITS))
    fields: ClassVar = {"text": str, "code": str, "task_id": int, "test_list": list}
    aliases: ClassVar = {"text": "prompt"}

    split: str = "validation"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"task.split {self.split!r} is not one of {', '.join(SPLITS)}")
        super().__post_init__()

    @property
    def version(self) -> str:
        """The identity of the file or hub revision, and the split."""
        return f"{super().version}, {self.split}"

    def load(self) -> list[Example]:
        """Return the split's problems. Raises `ValueError` if few-shot examples are missing."""
        rows, text = self.rows(), self.prompt.text
        shots = [self._fields(row) for row in rows if row["task_id"] in SPLITS["prompt"]][:WORKED]
        if "{worked}" in text and len(shots) < WORKED:
            raise ValueError(
                f"task.template={self.template} needs {WORKED} worked examples, rows with a "
                "task_id from 1 to 10: add them to the file, or use task.template=chat"
            )
        if "{problem}" in text:
            worked = "\n\n".join(SOLVED.format(n=n, **shot) for n, shot in enumerate(shots))
        else:
            solved = text.partition("{worked}")[2] + "{code}\n[DONE]\n"
            worked = "".join(solved.format(**shot) for shot in shots)
        examples = []
        for row in (row for row in rows if row["task_id"] in SPLITS[self.split]):
            fields = {**self._fields(row), "worked": worked}
            examples.append(self.prompt.example(f"mbpp/{row['task_id']}", fields, row))
        return examples

    def problem(self, row: Mapping) -> Mapping:
        """Return a row as a HumanEval problem with an empty prompt, whose `test` runs set-up code
        and assertions at module level, after the completion."""
        setup = [row.get("test_setup_code") or "", *(row.get("test_imports") or ())]
        after = [*setup, *row["test_list"], "def check(_):\n    pass"]
        problem = {"task_id": str(row["task_id"]), "prompt": "", "entry_point": "None"}
        return {**problem, "test": "\n".join(after)}

    def _fields(self, row: Mapping) -> dict[str, str]:
        text, lines = row["text"], "\n".join(row["test_list"])
        # The published prompts have the list and the code unchanged.
        raw = self.template == "paper-yi"
        return {
            "text": text,
            "tests": str(row["test_list"]) if raw else lines,
            "code": row["code"] if raw else row["code"].replace("\r", "").replace("\t", "    "),
            "problem": f">>> Problem:\n{text.strip()}\n>>> Test Cases:\n{lines}\n",
        }
