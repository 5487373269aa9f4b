"""What a benchmark is: examples in, prompts out, completions scored.

A task knows no model and no decoder. Invariant: `load` gives the same examples in the same order
each time, so that every decoder, and a resumed run, meets the same prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Example:
    """One prompt. `id` is unique in its task; `data` is whatever the task needs to score it."""

    id: str
    prompt: str
    data: Mapping[str, object] = field(default_factory=dict, hash=False)


class Task(Protocol):
    """A set of examples and how their completions are stopped and scored."""

    name: str
    version: str
    licence: str
    stop: Sequence[str]
    """A completion ends with the first token that completes one of these strings."""
    max_new: int
    """New tokens per prompt unless the run says otherwise."""

    def load(self) -> list[Example]:
        """Return every example, in a fixed order. Raises `ValueError` for unusable data."""
        ...

    def score(self, example: Example, completion: str) -> dict[str, float]:
        """Return named scores of one completion; {} where nothing is scored."""
        ...


def select(examples: Sequence[Example], *, limit: int | None, stride: int = 1) -> list[Example]:
    """Return every `stride`-th example, at most `limit` of them (None: no limit).

    >>> [e.id for e in select([Example(str(i), "") for i in range(9)], limit=3, stride=4)]
    ['0', '4', '8']
    """
    if stride < 1 or (limit is not None and limit < 1):
        raise ValueError(f"task.limit {limit} and task.stride {stride} must be 1 or more")
    chosen = list(examples[::stride])[:limit]
    if not chosen:
        raise ValueError("the task has no examples: check its file")
    return chosen


def fingerprint(examples: Sequence[Example]) -> str:
    """Return a short hash of the examples' ids and prompts."""
    text = json.dumps([[e.id, e.prompt] for e in examples])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
