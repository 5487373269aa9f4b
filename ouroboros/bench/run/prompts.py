"""From an example to the token ids that a model reads: chat templates, conversations, contexts.

If each decoder continued its own conversation, a near tie in bfloat16 would give decoders different
prompts and nothing could be compared. So later turns of a conversation follow the answers of one
decoder, the run's first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.tasks.task import Conversation, Example, Task
from ouroboros.engine.model import CachedModel

SEPARATOR = "\n\n"


def prompt_ids(tokenizer, example: Example) -> list[int]:
    """Return an example's prompt as token ids; messages go through the chat template."""
    if not example.messages:
        return list(tokenizer(example.prompt).input_ids)
    messages = [dict(message) for message in example.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def longest(tokenizer, examples: Sequence[Example]) -> int:
    """Return the tokens of the longest prompt, first turns of conversations only."""
    return max((len(prompt_ids(tokenizer, example)) for example in examples), default=0)


def check_prompts(target: CachedModel, examples: Sequence[Example]) -> None:
    """Raise `ValueError` where examples need a chat template and the tokenizer has none, and for a
    prompt with a token id that the model does not know."""
    if any(e.messages for e in examples) and not getattr(target.tokenizer, "chat_template", None):
        raise ValueError(
            "task.template=chat needs a tokenizer with a chat template, and this model's has none: "
            "use another task.template, or an instruct model"
        )
    for example in examples if len(target.tokenizer) > target.vocab_size else ():
        check_ids(prompt_ids(target.tokenizer, example), target.vocab_size, example.id)


def check_ids(prompt: Sequence[int], vocab: int, name: str) -> None:
    """Raise `ValueError` for a token id that a model of `vocab` tokens does not know."""
    if unknown := [token for token in prompt if not 0 <= token < vocab]:
        raise ValueError(
            f"the prompt of {name} holds id {unknown[0]}, the model knows ids 0 to {vocab - 1}: "
            "give the tokenizer that the model was trained with, or resize its embeddings"
        )


class Answers:
    """The answers of the decoder `first`, from which all decoders' conversations continue."""

    def __init__(
        self, task: Task, examples: Sequence[Example], first: str, done: Iterable[Sample]
    ) -> None:
        self._task, self._first = task, first
        self._examples = {example.id: example for example in examples}
        self._samples: dict[tuple[str, int], Sample] = {}
        for sample in done:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Take a sample; samples of other decoders are ignored."""
        if sample.decoder == self._first:
            self._samples[sample.example, sample.repeat] = sample

    def with_history(self, example: Example, repeat: int) -> Example:
        """Return the example, a later turn with the conversation before it.

        Raises `ValueError` where the previous turn failed.
        """
        if example.follows is None:
            return example
        answer = self._samples[example.follows, repeat]
        if answer.error:
            raise ValueError(f"{self._first} failed at the turn before: {answer.error}")
        before = self.with_history(self._examples[example.follows], repeat)
        assert isinstance(self._task, Conversation)
        return self._task.continued(example, before, answer.text)


def with_context(
    examples: Sequence[Example], others: Sequence[Example], tokenizer, tokens: int
) -> list[Example]:
    """Pad each prompt with other prompts to about `tokens` tokens.

    The padding is the prompts of `others` (the whole task) that precede the example, cyclically,
    the nearest last and the farthest truncated at its start. Longer prompts stay unchanged. Raises
    `ValueError` for conversations, and where `others` have too little text.
    """
    if any(e.messages or e.follows for e in others):
        raise ValueError("context_tokens lengthens plain prompts only, not chats: leave it null")
    texts = [tokenizer(e.prompt + SEPARATOR, add_special_tokens=False).input_ids for e in others]
    index_of, longer = {example.id: index for index, example in enumerate(others)}, []
    for example in examples:
        index = index_of[example.id]
        room = tokens - len(texts[index])
        before = list(chain.from_iterable([*texts[index + 1 :], *texts[:index]]))
        if len(before) < room:
            raise ValueError(
                f"context_tokens={tokens} is more than all of the task's prompts together: "
                f"{example.id} has {len(before) + len(texts[index])}"
            )
        text = tokenizer.decode(before[-room:]) if room > 0 else ""
        longer.append(replace(example, prompt=text + example.prompt))
    return longer
