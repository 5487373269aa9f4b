"""The phrase pool: for each token, the phrases that followed it most recently.

A phrase may remember the tokens before its key (its context): asked with a context, the pool gives
the phrases that agree with more of it first.

Invariant: at most `per_key` phrases under each key, each once, the newest last; adding a phrase
that is there already makes it the newest.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FORMAT = "ouroboros-phrase-pool-2"
CONTEXT = 6  # tokens before a key that a phrase remembers
REMEDY = "make a new one with pool.save (in a run: save_pools=true), or start cold"


def write_pool_file(path: str | Path, file_format: str, tokenizer_id: str, content: dict) -> None:
    """Write a pool as JSON, whole or not at all."""
    partial = Path(f"{path}.partial")
    text = json.dumps({"format": file_format, "tokenizer": tokenizer_id, **content})
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def read_pool_file(
    path: str | Path, file_format: str, tokenizer_id: str, parse: Callable, *, what: str
) -> Any:
    """Return `parse(content)` of a file of `write_pool_file`.

    Raises `ValueError` for a file that cannot be read, another format or content that `parse`
    refuses, and another tokenizer; `what` names what the file should hold.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != file_format:
            raise KeyError("format")
        pool, made_by = parse(content), content["tokenizer"]
    except OSError as error:
        raise ValueError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no {what} of this version: {REMEDY}") from error
    if made_by != tokenizer_id:
        raise ValueError(f"{path} was made with another tokenizer ({made_by}): {REMEDY}")
    return pool


def _common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two sequences share at their ends."""
    count = 0
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        count += 1
    return count


def check_pool(pool_state: str, pool: object, kind: type) -> None:
    """Raise `ValueError` for an unknown pool state, and for a pool that is missing, of another kind
    or emptied by a cold start."""
    if pool_state not in ("cold", "task", "loaded"):
        raise ValueError(f"pool_state {pool_state!r} is not one of cold, task, loaded")
    if pool is None and pool_state == "loaded":
        raise ValueError(f'pool_state="loaded" needs a pool: give pool={kind.__name__}.load(...)')
    if pool is not None and not isinstance(pool, kind):
        name = kind.__name__
        raise ValueError(f"pool is {pool!r}: give a {name}, such as {name}.load(...)")
    if pool is not None and pool_state == "cold":
        raise ValueError('a cold start would empty the pool: give pool_state="loaded" or "task"')


class PhrasePool:
    """Phrases of up to `phrase_len` tokens by the token before them, least recent dropped.

    >>> pool = PhrasePool(phrase_len=2, per_key=2)
    >>> for phrase in [(1, 2), (3, 4), (1, 2), (5, 6)]:
    ...     pool.add(9, phrase)
    >>> pool.get(9, 2)
    [(5, 6), (1, 2)]
    """

    def __init__(self, *, phrase_len: int, per_key: int, use_context: bool = True) -> None:
        if phrase_len < 1 or per_key < 1:
            raise ValueError(
                f"phrase_len {phrase_len} and per_key {per_key} must be at least 1 "
                "(to switch phrases off, ask the decoder for topk=0 or verification_set_size=0)"
            )
        self.phrase_len = phrase_len
        self.per_key = per_key
        self.use_context = use_context
        self._phrases: dict[int, OrderedDict[tuple[int, ...], tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """The number of phrases under all keys."""
        return sum(map(len, self._phrases.values()))

    def __iter__(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (key, phrase), oldest first within a key."""
        for key, phrases in self._phrases.items():
            for phrase in phrases:
                yield key, phrase

    def add(self, key: int, phrase: Sequence[int], before: Sequence[int] = ()) -> None:
        """Insert a phrase as the newest of its key; only its first `phrase_len` tokens are kept.

        `before` are the tokens before the key, where they are known; a phrase that comes again
        without them keeps those that it has.
        """
        kept = tuple(phrase[: self.phrase_len])
        if not kept:
            return
        phrases = self._phrases.setdefault(key, OrderedDict())
        known = phrases.pop(kept, ())
        phrases[kept] = tuple(before) or known
        if len(phrases) > self.per_key:
            phrases.popitem(last=False)

    def add_text(self, tokens: Sequence[int], start: int = 0) -> None:
        """Insert every full phrase of `tokens` that ends at index `start` or later."""
        n = self.phrase_len
        for at in range(max(0, start - n), len(tokens) - n):
            before = tokens[max(0, at - CONTEXT) : at] if self.use_context else ()
            self.add(tokens[at], tokens[at + 1 : at + 1 + n], before)

    def replace(self, key: int, old: Sequence[int], new: Sequence[int]) -> None:
        """Put `new` in the place of `old`, as the newest of its key."""
        phrases = self._phrases.get(key)
        if phrases is not None:
            phrases.pop(tuple(old), None)
        self.add(key, new)

    def get(self, key: int, count: int, *, before: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """Return up to `count` phrases: those that share most of the context `before` their key
        first, the newest first among equals."""
        phrases = self._phrases.get(key)
        if not phrases or count <= 0:
            return []
        newest = list(reversed(phrases))
        if self.use_context and before and len(newest) > 1:
            newest.sort(key=lambda phrase: -_common_suffix(phrases[phrase], before))
        return newest[:count]

    def clear(self) -> None:
        """Forget everything."""
        self._phrases.clear()

    def copy(self) -> PhrasePool:
        """Return another pool with the same phrases, contexts and order."""
        other = PhrasePool(
            phrase_len=self.phrase_len, per_key=self.per_key, use_context=self.use_context
        )
        other.restore(self)
        return other

    def restore(self, saved: PhrasePool) -> None:
        """Hold exactly the phrases and contexts of `saved`, which must be of this pool's sizes."""
        if (saved.phrase_len, saved.per_key) != (self.phrase_len, self.per_key):
            raise ValueError(
                f"a pool of {saved.per_key} phrases of {saved.phrase_len} tokens per key cannot "
                f"fill one of {self.per_key} of {self.phrase_len}: give both the same sizes"
            )
        self._phrases = {key: OrderedDict(phrases) for key, phrases in saved._phrases.items()}

    def save(self, path: str | Path, *, tokenizer_id: str) -> None:
        """Write JSON, whole or not at all; `tokenizer_id` is the tokenizer's
        `vocab.fingerprint`. Each phrase is a pair: its tokens, and the tokens before its key."""
        content = {
            "phrase_len": self.phrase_len,
            "per_key": self.per_key,
            "use_context": self.use_context,
            "phrases": {key: list(value.items()) for key, value in self._phrases.items()},
        }
        write_pool_file(path, FORMAT, tokenizer_id, content)

    @classmethod
    def load(
        cls, path: str | Path, *, tokenizer_id: str, phrase_len: int, per_key: int
    ) -> PhrasePool:
        """Read a pool back, at most `per_key` phrases a key. Raises `ValueError` for a corrupt
        file, another tokenizer or another phrase length."""

        def parse(content: dict) -> PhrasePool:
            length, use_context = content["phrase_len"], bool(content["use_context"])
            pool = cls(phrase_len=length, per_key=per_key, use_context=use_context)
            for key, pairs in content["phrases"].items():
                for phrase, before in pairs:
                    pool.add(int(key), *(_token_ids(tokens) for tokens in (phrase, before)))
            return pool

        pool = read_pool_file(path, FORMAT, tokenizer_id, parse, what="phrase pool")
        if pool.phrase_len != phrase_len:
            raise ValueError(
                f"{path} holds phrases of {pool.phrase_len} tokens, ngram_size asks for "
                f"{phrase_len}: {REMEDY}"
            )
        return pool


def _token_ids(values: list) -> tuple[int, ...]:
    """Return token ids. Raises `ValueError` or its like for other values."""
    tokens = tuple(map(int, values))
    if any(token < 0 for token in tokens):
        raise ValueError("a negative token id")
    return tokens
