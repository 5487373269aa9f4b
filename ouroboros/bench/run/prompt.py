"""From an example to the token ids that a model reads: chat templates, and longer contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ouroboros.bench.tasks.task import Example

SEPARATOR = "\n\n"


def prompt_ids(tokenizer, example: Example) -> list[int]:
    """Return the example's prompt as token ids, in the tokenizer's chat template if it has
    messages."""
    if not example.messages:
        return list(tokenizer(example.prompt).input_ids)
    messages = [dict(message) for message in example.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def longest(tokenizer, examples: Sequence[Example]) -> int:
    """Return the tokens of the longest prompt; a conversation's first turn stands for it."""
    return max((len(prompt_ids(tokenizer, example)) for example in examples), default=0)


def check_chat(tokenizer, examples: Sequence[Example]) -> None:
    """Raise `ValueError` where examples need a chat template and the tokenizer has none."""
    if any(e.messages for e in examples) and not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "task.template=chat needs a tokenizer with a chat template, and this model's has none: "
            "use another task.template, or an instruct model"
        )


def with_context(
    examples: Sequence[Example], others: Sequence[Example], tokenizer, tokens: int
) -> list[Example]:
    """Return the examples with text of the task before each prompt, to about `tokens` tokens.

    The text is the prompts of `others` (all of the task) before the example in the task's order,
    going round at its start, the nearest one last and the farthest cut at its front. A prompt that
    is longer stays as it is. Raises `ValueError` for conversations, and where `others` have too
    little text.
    """
    if any(e.messages or e.follows for e in others):
        raise ValueError("context_tokens lengthens plain prompts only, not chats: leave it null")
    texts = [tokenizer(e.prompt + SEPARATOR, add_special_tokens=False).input_ids for e in others]
    place = {example.id: index for index, example in enumerate(others)}
    longer = []
    for example in examples:
        at = place[example.id]
        room = tokens - len(texts[at])
        before: list[int] = []
        for ids in [*reversed(texts[:at]), *reversed(texts[at + 1 :])]:
            if len(before) >= room:
                break
            before = [*ids, *before]
        if len(before) < room:
            raise ValueError(
                f"context_tokens={tokens} is more than all of the task's prompts together: "
                f"{example.id} has {len(before) + len(texts[at])}"
            )
        text = tokenizer.decode(before[-room:]) if room > 0 else ""
        longer.append(replace(example, prompt=text + example.prompt))
    return longer
