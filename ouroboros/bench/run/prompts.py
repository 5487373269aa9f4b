"""Turn an example into the model's input ids: chat templates and conversations.

Later turns of a conversation continue the answers of the run's first decoder: if each decoder
continued its own answers, a near tie could give decoders different prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.identity import identity
from ouroboros.bench.tasks.task import Conversation, Example, Task
from ouroboros.models.vocab import encode


@dataclass
class PromptBuilder:
    """Makes the token ids of prompts; examples with messages use the tokenizer's chat template.

    Each prompt is rendered once and kept in `texts`, by a hash of its messages, because a template
    may contain a clock. `args` are arguments of the template. In a parallel run, `share` returns
    rank 0's text.
    """

    tokenizer: Any
    args: Mapping[str, object] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    share: Callable[[str], str] = str

    def ids(self, example: Example) -> list[int]:
        """Return a prompt's token ids. Raises `ValueError` if the chat template fails."""
        if not example.messages:
            return encode(self.tokenizer, example.prompt)
        if (key := identity(*map(dict, example.messages))) not in self.texts:
            self.texts[key] = self.share(self._rendered(example))
        return list(self.tokenizer(self.texts[key], add_special_tokens=False).input_ids)

    def longest(self, examples: Sequence[Example]) -> int:
        """Return the longest prompt's number of tokens, without later turns of conversations."""
        return max((len(self.ids(one)) for one in examples if not one.follows), default=0)

    def _rendered(self, example: Example) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError(
                "task.template=chat needs a tokenizer with a chat template, and this model's has "
                "none: use another task.template, or an instruct model"
            )
        messages, how = [dict(message) for message in example.messages], dict(self.args)
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special and messages[-1]["content"].lstrip().startswith(token.content):
                raise ValueError(
                    f"the prompt of {example.id} begins with {token.content}, as if a template "
                    "had rendered it: give task.template=plain "
                )
        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **how
            )
        except TemplateError as error:
            raise ValueError(
                f"the model's chat template fails for {example.id} ({error}): correct "
                "task.template_args, or use task.template=plain"
            ) from error


def check_ids(prompt: Sequence[int], vocab: int, name: str) -> None:
    """Raise `ValueError` if a token id of the prompt `name` is not in the range 0 to vocab - 1."""
    if unknown := [token for token in prompt if not 0 <= token < vocab]:
        raise ValueError(
            f"the prompt of {name} holds id {unknown[0]}, the model knows ids 0 to {vocab - 1}: "
            "give the tokenizer that the model was trained with, or resize its embeddings"
        )


@dataclass(frozen=True)
class Answers:
    """The answers of the run's first decoder, `first`, which all decoders' conversations
    continue. `samples` has the run's samples so far, by key; it may grow."""

    task: Task
    examples: Sequence[Example]
    first: str
    samples: Mapping[tuple[str, str, int], Sample]

    def with_history(self, example: Example, repeat: int) -> Example:
        """Return the example; before a later turn of a conversation, put the earlier turns with
        the answers of `first` in this `repeat`. Raises `ValueError` if the previous turn failed."""
        if example.follows is None:
            return example
        answer = self.samples[example.follows, self.first, repeat]
        if answer.error:
            raise ValueError(f"{self.first} failed at the turn before: {answer.error}")
        turn = next(one for one in self.examples if one.id == example.follows)
        assert isinstance(self.task, Conversation)
        return self.task.continued(example, self.with_history(turn, repeat), answer.text)
