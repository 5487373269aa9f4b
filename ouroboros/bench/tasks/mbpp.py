"""MBPP, mostly basic Python problems (Austin et al. 2021, https://arxiv.org/abs/2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ouroboros.bench.tasks.dataset import DEEPSEEK, CodeTask, Template
from ouroboros.bench.tasks.task import Example

SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""Which task_id belongs to which split."""
WORKED = 3
STOP = ("[DONE]",)

_TASK = (
    "You are an expert Python programmer, and here is your task: {text} "
    "Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
)
_INDENT = "\n" + " " * 24  # the published prompts carry the indentation of their source code
_EXAMPLES = (
    "Please refer the given examples and generate a python function for my problem."
    f"{_INDENT}Examples are listed as follows:{_INDENT}{{worked}}"
    f"\n{_INDENT}Here is my problem:{_INDENT}{{problem}}"
)
_CODELLAMA = f"[INST] B_INST\n{_INDENT}{_EXAMPLES}\nE_INST [/INST]"
TEMPLATES = {
    "plain": Template("{worked}" + _TASK, STOP),
    "chat": Template(
        "{text}\nYour code should pass these tests:\n\n{tests}\n\n"
        "Answer with one fenced block of Python.",
        chat=True,
    ),
    "paper-yi": Template("{worked}" + _TASK),
    "paper-codellama": Template(_CODELLAMA, instructs=True),
    "paper-deepseek": Template(DEEPSEEK.format(instruction=_EXAMPLES), instructs=True),
}


class MBPP(CodeTask):
    """974 short Python functions to write. CC-BY-4.0.

    `split` "validation" has the 90 problems of the published runs. The first three of the split
    "prompt" are the worked examples. Scored with `execute_code`: pass@1 (see
    `CodeTask`). The hub id is google-research-datasets/mbpp, config full; `path` is its JSONL.
    """

    name = "mbpp"
    licence = "CC-BY-4.0"
    max_new = 256
    hub = ("google-research-datasets/mbpp", "full", "+".join(SPLITS))
    fields: ClassVar = {"text": str, "code": str, "task_id": int, "test_list": list}
    templates: ClassVar = TEMPLATES

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        split: str = "validation",
        template: str = "plain",
        stop: Sequence[str] | None = None,
        execute_code: bool = False,
        timeout_s: float = 3.0,
        memory_mib: int = 2048,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"task.split {split!r} is not one of {', '.join(SPLITS)}")
        self.split = split
        source: dict[str, Any] = {"path": path, "revision": revision, "template": template}
        limits: dict[str, Any] = {"timeout_s": timeout_s, "memory_mib": memory_mib}
        super().__init__(**source, stop=stop, execute_code=execute_code, **limits)

    @property
    def version(self) -> str:
        """What identifies the rows, and their split."""
        return f"{super().version}, {self.split}"

    def load(self) -> list[Example]:
        """Return the split's problems. Raises `ValueError` where worked examples are missing."""
        rows, template = self.rows(), self.template
        worked = [row for row in rows if row["task_id"] in SPLITS["prompt"]][:WORKED]
        if "{worked}" in template.text and len(worked) < WORKED:
            raise ValueError(
                f"task.template={self.template_name} needs {WORKED} worked examples, rows with a "
                "task_id from 1 to 10: add them to the file, or use task.template=chat"
            )
        if "{problem}" in template.text:
            solved = "- Example {n}:\n{problem}\n>>> Code:\n```python\n{code}\n```"
            parts = [solved.format(n=n, **self._fields(row)) for n, row in enumerate(worked)]
            few = "\n\n".join(parts)
        else:
            text = _TASK + "{code}\n[DONE]\n"
            few = "".join(text.format(**self._fields(row)) for row in worked)
        return [
            template.example(f"mbpp/{row['task_id']}", {**self._fields(row), "worked": few}, row)
            for row in rows
            if row["task_id"] in SPLITS[self.split]
        ]

    def problem(self, row: Mapping) -> Mapping:
        """Return a row in the form of HumanEval's problems: the code, then the assertions, at the
        top level."""
        after = [row.get("test_setup_code") or "", *row["test_list"], "def check(_):\n    pass"]
        return {
            "task_id": str(row["task_id"]),
            "prompt": "",
            "test": "\n".join(after),
            "entry_point": "None",
        }

    def _fields(self, row: Mapping) -> dict[str, str]:
        text, lines = row["text"], "\n".join(row["test_list"])
        raw = self.template_name == "paper-yi"  # published: the list and the code as they stand
        return {
            "text": text,
            "tests": str(row["test_list"]) if raw else lines,
            "code": row["code"] if raw else row["code"].replace("\r", "").replace("\t", "    "),
            "problem": f">>> Problem:\n{text.strip()}\n>>> Test Cases:\n{lines}\n",
        }
