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
from collections.abc import Iterator, Sequence
from pathlib import Path

FORMAT = "ouroboros-phrase-pool-2"
CONTEXT = 6  # tokens before a key that a phrase remembers


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
        """Write the pool as JSON, whole or not at all; `tokenizer_id` names what the ids mean (see
        `vocab.fingerprint`). Each phrase is a pair: its tokens, and the tokens before its key."""
        content = {
            "format": FORMAT,
            "tokenizer": tokenizer_id,
            "phrase_len": self.phrase_len,
            "per_key": self.per_key,
            "use_context": self.use_context,
            "phrases": {key: list(value.items()) for key, value in self._phrases.items()},
        }
        partial = Path(f"{path}.partial")
        partial.write_text(json.dumps(content))
        os.replace(partial, path)

    @classmethod
    def load(
        cls, path: str | Path, *, tokenizer_id: str, phrase_len: int, per_key: int
    ) -> PhrasePool:
        """Read a pool back. Raises `ValueError` for a file that is corrupt, or made with another
        tokenizer or phrase length."""
        remedy = "make a new one with PhrasePool.save (in a run: save_pools=true), or start cold"
        try:
            content = json.loads(Path(path).read_text())
            if content["format"] != FORMAT:
                raise KeyError("format")
            entries = _entries(content["phrases"])
            made_by, length = content["tokenizer"], content["phrase_len"]
            use_context = bool(content["use_context"])
        except OSError as error:
            raise ValueError(f"cannot read the phrase pool {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no phrase pool of this version: {remedy}") from error
        if made_by != tokenizer_id:
            raise ValueError(f"{path} was made with another tokenizer ({made_by}): {remedy}")
        if length != phrase_len:
            raise ValueError(
                f"{path} holds phrases of {length} tokens, ngram_size asks for {phrase_len}: "
                f"{remedy}"
            )
        pool = cls(phrase_len=phrase_len, per_key=per_key, use_context=use_context)
        for key, phrase, before in entries:
            pool.add(key, phrase, before)
        return pool


def _entries(phrases: dict) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Return a file's (key, phrase, context), oldest first. Raises `ValueError` and its like for
    what is not one."""
    entries = [
        (int(key), tuple(map(int, phrase)), tuple(map(int, before)))
        for key, pairs in phrases.items()
        for phrase, before in pairs
    ]
    if any(token < 0 for _, *both in entries for token in (*both[0], *both[1])):
        raise ValueError("a negative token id")
    return entries
