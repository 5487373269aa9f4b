"""What outlives a prompt, in memory and as files: a pool of phrases, or Ouroboros's memory.

A `PhrasePool` holds, for each token, the phrases that followed it most recently; the published
drafter and lookahead decoding draw on one. A `DrafterMemory` holds what `Ouroboros` remembers.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

POOL_FORMAT, MEMORY_FORMAT = "ouroboros-phrase-pool-2", "ouroboros-phrases-2"
CONTEXT = 6  # tokens before a phrase that are remembered
RATES = (
    "tokens", "cost", "phrase_hits", "phrase_trials", "draft_hits", "draft_trials", "finds",
    "find_trials", "accepted", "expected",
)  # fmt: skip
"""What `Ouroboros` learns about costs and hit rates, in the order in which it is saved."""
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
    pairs = enumerate(zip(reversed(a), reversed(b), strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def check_pool(pool_state: str, pool: object, kind: type) -> None:
    """Raise `ValueError` for an unknown pool state, and for a pool that is missing, of another kind
    or emptied by a cold start."""
    if pool_state not in ("cold", "task", "loaded"):
        raise ValueError(f"pool_state {pool_state!r} is not one of cold, task, loaded")
    if pool is None and pool_state == "loaded":
        raise ValueError(f'pool_state="loaded" needs a pool: give pool={kind.__name__}.load(...)')
    if pool is not None and not isinstance(pool, kind):
        raise ValueError(f"pool is {pool!r}: give a {kind.__name__}, as {kind.__name__}.load(...)")
    if pool is not None and pool_state == "cold":
        raise ValueError('a cold start would empty the pool: give pool_state="loaded" or "task"')


class PhrasePool:
    """Phrases of up to `phrase_len` tokens by the token before them (their key).

    A phrase may remember the tokens before its key (its context): `get`, given a context, returns
    the phrases that agree with more of it first. Invariant: at most `per_key` phrases under each
    key, each once, the newest last; adding a phrase again makes it the newest, and the oldest is
    dropped.

    >>> pool = PhrasePool(phrase_len=2, per_key=2)
    >>> for phrase in [(1, 2), (3, 4), (1, 2), (5, 6)]:
    ...     pool.add(9, phrase)
    >>> pool.get(9, 2)
    [(5, 6), (1, 2)]
    """

    def __init__(self, *, phrase_len: int, per_key: int) -> None:
        if phrase_len < 1 or per_key < 1:
            raise ValueError(
                f"phrase_len {phrase_len} and per_key {per_key} must be at least 1 "
                "(to switch phrases off, ask the decoder for topk=0 or verification_set_size=0)"
            )
        self.phrase_len = phrase_len
        self.per_key = per_key
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
            self.add(tokens[at], tokens[at + 1 : at + 1 + n], tokens[max(0, at - CONTEXT) : at])

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
        if before and len(newest) > 1 and any(phrases.values()):
            newest.sort(key=lambda phrase: -_common_suffix(phrases[phrase], before))
        return newest[:count]

    def clear(self) -> None:
        """Forget everything."""
        self._phrases.clear()

    def copy(self) -> PhrasePool:
        """Return another pool with the same phrases, contexts and order."""
        other = PhrasePool(phrase_len=self.phrase_len, per_key=self.per_key)
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
            "phrases": {key: list(value.items()) for key, value in self._phrases.items()},
        }
        write_pool_file(path, POOL_FORMAT, tokenizer_id, content)

    @classmethod
    def load(
        cls, path: str | Path, *, tokenizer_id: str, phrase_len: int, per_key: int
    ) -> PhrasePool:
        """Read a pool back, at most `per_key` phrases a key. Raises `ValueError` for a corrupt
        file, another tokenizer or another phrase length."""

        def parse(content: dict) -> PhrasePool:
            pool = cls(phrase_len=content["phrase_len"], per_key=per_key)
            for key, pairs in content["phrases"].items():
                for phrase, before in pairs:
                    pool.add(int(key), *(_token_ids(tokens) for tokens in (phrase, before)))
            return pool

        pool = read_pool_file(path, POOL_FORMAT, tokenizer_id, parse, what="phrase pool")
        if pool.phrase_len != phrase_len:
            raise ValueError(
                f"{path} holds phrases of {pool.phrase_len} tokens, ngram_size asks for "
                f"{phrase_len}: {REMEDY}"
            )
        return pool


@dataclass(frozen=True)
class DrafterMemory:
    """Texts one after another with -1 between them; recycled predictions, oldest first, each the
    CONTEXT tokens before it (nearest first, -1 where there was none) and itself; and the learned
    `rates` (`RATES`; empty: the priors)."""

    text: tuple[int, ...] = ()
    recycled: tuple[tuple[int, ...], ...] = ()
    rates: tuple[float, ...] = ()

    def __len__(self) -> int:
        """The number of tokens and predictions."""
        return len(self.text) + len(self.recycled)

    def save(self, path: str | Path, *, tokenizer_id: str) -> None:
        """Write JSON, whole or not at all; `tokenizer_id` is the tokenizer's
        `vocab.fingerprint`."""
        write_pool_file(path, MEMORY_FORMAT, tokenizer_id, asdict(self))

    @classmethod
    def load(cls, path: str | Path, *, tokenizer_id: str) -> DrafterMemory:
        """Read a file back. Raises `ValueError` for a corrupt file and for another tokenizer."""

        def parse(content: dict) -> DrafterMemory:
            recycled = tuple(_token_ids(entry, -1) for entry in content["recycled"])
            rates = tuple(map(float, content["rates"]))
            if any(len(e) != CONTEXT + 1 or e[0] < 0 or e[-1] < 0 for e in recycled):
                raise ValueError("a prediction of another size")
            if len(rates) not in (0, len(RATES)):
                raise ValueError("rates of another version")
            return cls(_token_ids(content["text"], -1), recycled, rates)

        return read_pool_file(path, MEMORY_FORMAT, tokenizer_id, parse, what="phrases")


def _token_ids(values: list, least: int = 0) -> tuple[int, ...]:
    """Return token ids. Raises `ValueError` or its like for other values and ids below `least`."""
    tokens = tuple(map(int, values))
    if any(token < least for token in tokens):
        raise ValueError("a negative token id")
    return tokens
