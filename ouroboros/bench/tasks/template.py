"""Wordings of a task's prompts: plain ones for base models, chat, and those of published runs.

Every task has an option `template` that names one of its wordings:

    plain           for base models, with stop strings
    chat            one user message, put into the words of the tokenizer's own chat template
    paper-<family>  word for word as in the published runs, which used no stop strings

and some tasks have further ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ouroboros.bench.tasks.task import Example

DEEPSEEK = (
    "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
    "Deepseek Company, and you only answer questions related to computer science. For politically "
    "sensitive questions, security and privacy issues, and other non-computer science questions, "
    "you will refuse to answer\n### Instruction:\n{instruction}\n### Response:\n"
)
"""What the DeepSeek-coder instruct models read around an instruction."""


@dataclass(frozen=True)
class Template:
    """One wording. `text` names the row's fields in braces; `stop` are its usual stop strings.

    `instructs` says that it asks an instruct model without the tokenizer's chat template.
    """

    text: str
    stop: tuple[str, ...] = ()
    chat: bool = False
    instructs: bool = False

    @property
    def fenced(self) -> bool:
        """Whether an answer may have its code in a fenced block, with words around it."""
        return self.chat or self.instructs

    def example(
        self, name: str, fields: Mapping[str, str], data: Mapping[str, object], *, group: str = ""
    ) -> Example:
        """Return the example called `name` whose prompt is this wording of `fields`."""
        prompt = self.text.format(**fields)
        messages = ({"role": "user", "content": prompt},) if self.chat else ()
        return Example(name, prompt, data, messages, group)

    def stops(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """Return the stop strings: those `wanted`, or with None this wording's own."""
        return self.stop if wanted is None else tuple(wanted)


Wording = TypeVar("Wording", bound=Template)


def choose_template(templates: Mapping[str, Wording], name: str) -> Wording:
    """Return the wording called `name`. Raises `ValueError` that lists those there are."""
    if name not in templates:
        raise ValueError(
            f"task.template {name!r} is unknown here; choose one of {', '.join(templates)}"
        )
    return templates[name]
