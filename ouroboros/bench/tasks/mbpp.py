"""MBPP, mostly basic Python problems (Austin et al. 2021, https://arxiv.org/abs/2108.07732)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ouroboros.bench.tasks.dataset import DEEPSEEK, DatasetTask, Template, code_of, read_rows
from ouroboros.bench.tasks.sandbox import Execution
from ouroboros.bench.tasks.task import Example

SPLITS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""Which task_id belongs to which split, in both subsets."""
SUBSETS = {"full": ("text", "validation"), "sanitized": ("prompt", "test")}
"""By subset: the field with the problem's text, and the split that is usual."""
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


class MBPP(DatasetTask):
    """974 short Python functions to write (`subset` sanitized: 427). CC-BY-4.0.

    `split` null is the subset's usual one: the 90 validation problems (task_id 511 to 600) of full,
    as published, and the test problems of sanitized. The first three problems of the split
    "prompt" are the worked examples. Scored with `execute_code`: pass@1 by the problem's own tests,
    in a limited subprocess (untrusted code, see `HumanEval`). The hub id is
    google-research-datasets/mbpp; `path` is the data set's own JSONL (full) or JSON (sanitized).
    """

    name = "mbpp"
    licence = "CC-BY-4.0"
    max_new = 256
    templates: ClassVar = TEMPLATES

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        subset: str = "full",
        split: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
        execute_code: bool = False,
        timeout_s: float = 3.0,
        memory_mib: int = 2048,
    ) -> None:
        if subset not in SUBSETS:
            raise ValueError(f"task.subset {subset!r} is not one of {', '.join(SUBSETS)}")
        self.text, usual = SUBSETS[subset]
        self.split = split or usual
        if self.split not in SPLITS:
            raise ValueError(f"task.split {split!r} is not one of {', '.join(SPLITS)}")
        super().__init__(path=path, revision=revision, template=template, stop=stop)
        self.hub = ("google-research-datasets/mbpp", subset, "+".join(SPLITS))
        self.fields = {self.text: str, "code": str, "task_id": int, "test_list": list}
        self.execution = Execution(execute_code, timeout_s, memory_mib)

    @property
    def version(self) -> str:
        """What identifies the rows, and their split."""
        return f"{super().version}, {self.split}"

    def load(self) -> list[Example]:
        """Return the split's problems. Raises `ValueError` where worked examples are missing, and
        for a file of the other subset."""
        if self.file is not None:
            _, first = next(read_rows(self.file), ("", {}))
            other = next(name for name, (text, _) in SUBSETS.items() if text != self.text)
            if self.text not in first and SUBSETS[other][0] in first:
                raise ValueError(f"{self.file.name} is {other} MBPP: give task.subset={other}")
        rows = self.rows()
        worked = self._worked(rows)
        return [
            self.template.example(f"mbpp/{row['task_id']}", {**self._fields(row), **worked}, row)
            for row in rows
            if row["task_id"] in SPLITS[self.split]
        ]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code may not be executed."""
        code = code_of(completion, self.stop or STOP, fenced=self.template.fenced)
        return self.execution.score(as_problem(example.data), code)

    def _worked(self, rows: Sequence[Mapping]) -> dict[str, str]:
        if "{worked}" not in self.template.text:
            return {}
        chosen = [row for row in rows if row["task_id"] in SPLITS["prompt"]][:WORKED]
        if len(chosen) < WORKED:
            raise ValueError(
                f"task.template={self.template_name} needs {WORKED} worked examples, rows with a "
                "task_id from 1 to 10: add them to the file, or use task.template=chat"
            )
        if "{problem}" in self.template.text:
            parts = [f"- Example {n}:\n{self._solved(row)}" for n, row in enumerate(chosen)]
            return {"worked": "\n\n".join(parts)}
        text = _TASK + "{code}\n[DONE]\n"
        return {"worked": "".join(text.format(**self._fields(row)) for row in chosen)}

    def _solved(self, row: Mapping) -> str:
        fields = self._fields(row)
        return f"{fields['problem']}\n>>> Code:\n```python\n{fields['code']}\n```"

    def _fields(self, row: Mapping) -> dict[str, str]:
        text, lines = row[self.text], "\n".join(row["test_list"])
        raw = self.template_name == "paper-yi"  # published: the list and the code as they stand
        return {
            "text": text,
            "tests": str(row["test_list"]) if raw else lines,
            "code": row["code"] if raw else row["code"].replace("\r", "").replace("\t", "    "),
            "problem": f">>> Problem:\n{text.strip()}\n>>> Test Cases:\n{lines}\n",
        }


def as_problem(row: Mapping) -> dict:
    """Return a row in the form of HumanEval's problems: imports first, then the code, then the
    assertions, at the top level."""
    after = [row.get("test_setup_code") or "", *row["test_list"], "def check(_):\n    pass"]
    return {
        "task_id": str(row["task_id"]),
        "prompt": "\n".join([*row.get("test_imports", []), ""]),
        "test": "\n".join(after),
        "entry_point": "None",
    }
