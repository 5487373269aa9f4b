"""State kept between prompts: the phrase pool, and files of a drafter's state.

A drafter that learns across prompts has `carries_state`, `state_dict()`, which returns its state as
JSON values, and `load_state_dict(state)`. A drafter with the same settings and state proposes the
same trees. `load_state_dict` raises `ValueError`, `KeyError` or `TypeError` for damaged content.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STATE_FORMAT = "ouroboros-state-1"
CONTEXT = 6  # previous tokens stored with a phrase
MAX_TOKEN = 1 << 22  # limit of token ids in files, because arrays grow with the largest id
REMEDY = "make a new file (a run with pool_state=task writes one), or start cold"


def save_state(drafter: Any, path: str | Path, *, tokenizer_id: str) -> None:
    """Write a drafter's state to a JSON file, atomically. `tokenizer_id` is the
    `vocab.fingerprint` of its tokenizer."""
    content = {
        "format": STATE_FORMAT,
        "drafter": _name_of(drafter),
        "tokenizer": tokenizer_id,
        "state": drafter.state_dict(),
    }
    partial = Path(f"{path}.partial")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


def load_state(drafter: Any, path: str | Path, *, tokenizer_id: str) -> dict:
    """Restore a drafter from a file written by `save_state`; return the state. A drafter with
    `pool_state` "cold" forgets it at the next prompt: give "task", or pass the state as its `pool`.

    Raises `ValueError` if the file cannot be read, is damaged, or was made by another drafter, with
    another phrase length or with another tokenizer.
    """
    name = _name_of(drafter)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != STATE_FORMAT or content["drafter"] != name:
            raise ValueError("another drafter or version")
        made_by, state = content["tokenizer"], content["state"]
        if made_by == tokenizer_id:
            drafter.load_state_dict(state)
    except OSError as error:
        raise ValueError(f"cannot read the pool {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} holds no pool for {name} ({error}): {REMEDY}") from error
    if made_by != tokenizer_id:
        raise ValueError(f"{path} was made with another tokenizer ({made_by}): {REMEDY}")
    return state


def check_range(least: float, most: float = math.inf, /, **settings: float) -> None:
    """Raise `ValueError` for a setting below `least` or above `most`."""
    for name, value in settings.items():
        if not least <= value <= most:
            limits = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name} is {value}; choose {limits}")


def _name_of(drafter: object) -> str:
    return type(getattr(drafter, "drafter", drafter)).__name__  # unwraps an `OnFirstRank`


def token_ids(values: Sequence[int], least: int = 0) -> list[int]:
    """Return `values` as a list, after checking that they are token ids: integers from `least` to
    `MAX_TOKEN - 1`. Raises `ValueError` or `TypeError` for other values."""
    for value in values:
        if not isinstance(value, int) or not least <= value < MAX_TOKEN:
            raise ValueError(f"token id {value!r} is not between {least} and {MAX_TOKEN - 1}")
    return list(values)


def check_pool(pool_state: str, pool: object) -> None:
    """Raise `ValueError` for an unknown `pool_state`, and for a pool that is missing ("loaded"), is
    not a mapping, or would be emptied ("cold")."""
    if pool_state not in ("cold", "task", "loaded"):
        raise ValueError(f"pool_state {pool_state!r} is not one of cold, task, loaded")
    if pool is None and pool_state == "loaded":
        raise ValueError('pool_state="loaded" needs a pool: give pool=, the state of a drafter')
    if pool is not None and not isinstance(pool, Mapping):
        raise ValueError(f"pool is {pool!r}: give a drafter's state_dict(), or load_state(...)")
    if pool is not None and pool_state == "cold":
        raise ValueError('a cold start would empty the pool: give pool_state="loaded" or "task"')


class PhrasePool:
    """Phrases of up to `phrase_len` tokens, indexed by the token before them (their key).

    A phrase may store its context, the tokens before its key; `get` then prefers phrases whose
    context matches. Invariant: each key has at most `per_key` distinct phrases, newest last. Adding
    a phrase again makes it the newest; the oldest is dropped first.

    >>> pool = PhrasePool(phrase_len=2, per_key=2)
    >>> for phrase in [(1, 2), (3, 4), (1, 2), (5, 6)]:
    ...     pool.add(9, phrase)
    >>> pool.get(9, 2)
    [(5, 6), (1, 2)]
    """

    def __init__(self, *, phrase_len: int, per_key: int) -> None:
        check_range(1, phrase_len=phrase_len, per_key=per_key)
        self.phrase_len = phrase_len
        self.per_key = per_key
        self._phrases: dict[int, dict[tuple[int, ...], tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """Return the number of phrases."""
        return sum(map(len, self._phrases.values()))

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (key, phrase), oldest first within a key."""
        return ((key, phrase) for key, phrases in self._phrases.items() for phrase in phrases)

    def add(self, key: int, phrase: Sequence[int], before: Sequence[int] = ()) -> None:
        """Insert the first `phrase_len` tokens of a phrase as the newest of its key.

        `before` is its context, if known. Adding a phrase again without one keeps the known
        context.
        """
        kept = tuple(phrase[: self.phrase_len])
        if not kept or min(kept) < 0:  # -1: the target had no distribution there
            return
        phrases = self._phrases.setdefault(key, {})
        known = phrases.pop(kept, ())
        phrases[kept] = tuple(before) or known
        if len(phrases) > self.per_key:
            del phrases[next(iter(phrases))]

    def add_text(self, tokens: Sequence[int], start: int = 0) -> None:
        """Insert every full phrase of `tokens` that ends at index `start` or later."""
        n = self.phrase_len
        for at in range(max(0, start - n), len(tokens) - n):
            self.add(tokens[at], tokens[at + 1 : at + 1 + n], tokens[max(0, at - CONTEXT) : at])

    def replace(self, key: int, old: Sequence[int], new: Sequence[int]) -> None:
        """Remove the phrase `old`; add `new` as the newest of the key."""
        self._phrases.get(key, {}).pop(tuple(old), None)
        self.add(key, new)

    def get(self, key: int, count: int, *, before: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """Return up to `count` phrases of a key, sorted by the length of the common suffix of
        `before` and their context, longest first; ties are sorted newest first."""
        phrases = self._phrases.get(key)
        if not phrases or count <= 0:
            return []
        newest = list(reversed(phrases))
        if before and len(newest) > 1 and any(phrases.values()):
            newest.sort(key=lambda phrase: -_common_suffix(phrases[phrase], before))
        return newest[:count]

    def clear(self) -> None:
        """Remove all phrases."""
        self._phrases.clear()

    def state_dict(self) -> dict:
        """Return {"phrase_len": int, "phrases": {key: [(phrase, context), ...]}}. Keys are token
        ids as text; phrases are sorted oldest first."""
        phrases = {str(key): list(stored.items()) for key, stored in self._phrases.items()}
        return {"phrase_len": self.phrase_len, "phrases": phrases}

    def load_state_dict(self, state: Mapping) -> None:
        """Replace all phrases by those of a `state_dict`, at most `per_key` per key. Raises
        `ValueError` for another phrase length."""
        if state["phrase_len"] != self.phrase_len:
            raise ValueError(
                f"its phrases have {state['phrase_len']} tokens, but ngram_size - 1 is "
                f"{self.phrase_len}"
            )
        self.clear()
        for key, pairs in state["phrases"].items():
            for phrase, before in pairs:
                self.add(token_ids([int(key)])[0], token_ids(phrase), token_ids(before))


def _common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences share at their ends."""
    pairs = enumerate(zip(reversed(a), reversed(b), strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))
