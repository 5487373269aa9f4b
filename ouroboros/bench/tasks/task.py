"""The protocol that tasks implement, and the selection of a task's examples.

A task is independent of model and decoder. `load` always returns the same examples in the same
order, so every decoder, and a resumed run, gets the same prompts.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, runtime_checkable

Message = Mapping[str, str]
"""One turn of a conversation, as for chat templates: {"role": ..., "content": ...}."""
YES_OR_NO = frozenset({"passed", "timed_out", "exact_match"})
"""The scores that are either 1 or 0 for each completion, by name."""


@dataclass(frozen=True)
class Example:
    """One prompt. `id` is unique in its task; `data` is what the task needs for scoring.

    If there are `messages`, the model's prompt is made from them by the tokenizer's chat template;
    `prompt` is then only the last message. `group` is the example's category or "". `follows` is
    the id of the previous turn of a conversation: the whole prompt is known only once that turn is
    answered (see `Conversation`).
    """

    id: str
    prompt: str
    data: Mapping[str, object] = field(default_factory=dict, hash=False)
    messages: tuple[Message, ...] = field(default=(), hash=False)
    group: str = ""
    follows: str | None = None


class Task(Protocol):
    """A set of examples, their stop strings, and the scores of completions."""

    name: str
    version: str
    licence: str
    stop: Sequence[str]
    """A completion ends with the first token that completes one of these strings."""
    max_new: int
    """The maximum number of new tokens per prompt, unless the run sets one."""

    def load(self) -> list[Example]:
        """Return every example, in a fixed order. Raises `ValueError` for unusable data."""
        ...

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return named scores of one completion (see `YES_OR_NO`); {} if nothing is scored."""
        ...


@runtime_checkable
class Conversation(Protocol):
    """A task with conversations: some examples continue others."""

    def continued(self, example: Example, before: Example, answer: str) -> Example:
        """Return a later turn with its whole prompt: `before` is the previous turn with its whole
        prompt, `answer` its completion."""
        ...


@runtime_checkable
class CorpusScored(Protocol):
    """A task with corpus-level scores, such as BLEU."""

    def corpus_scores(self, pairs: Sequence[tuple[Example, str]]) -> dict[str, float]:
        """Return named scores of all (example, completion) pairs of one decoder together."""
        ...


def select(
    examples: Sequence[Example], *, limit: int | None, stride: int = 1, shuffle: int | None = None
) -> list[Example]:
    """Return every `stride`-th example, at most `limit` of them (None: no limit).

    A conversation counts as one example and stays together. `shuffle` seeds a random order of the
    selected examples; None keeps the task's order. Raises `ValueError` for no examples, duplicate
    ids, and a turn before the one it follows.

    >>> [e.id for e in select([Example(str(i), "") for i in range(9)], limit=3, stride=4)]
    ['0', '4', '8']
    """
    if not examples:
        raise ValueError("the task has no examples: check its file")
    name, count = Counter(example.id for example in examples).most_common(1)[0]
    if count > 1:
        raise ValueError(f"two examples have the same id {name!r}: name each differently")
    found: dict[str, list[Example]] = {}  # by id: the turns of its conversation
    for example in examples:
        if example.follows is not None and example.follows not in found:
            raise ValueError(f"{example.id} follows {example.follows!r}, which does not precede it")
        found[example.id] = [] if example.follows is None else found[example.follows]
        found[example.id].append(example)
    chosen = [found[one.id] for one in examples if one.follows is None][::stride][:limit]
    if shuffle is not None:
        random.Random(shuffle).shuffle(chosen)
    return list(chain.from_iterable(chosen))


def fingerprint(examples: Sequence[Example]) -> str:
    """Return a short hash of the examples' prompts, in their order."""
    rows = [[e.id, e.prompt, [dict(m) for m in e.messages], e.follows] for e in examples]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
