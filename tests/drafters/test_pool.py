"""The pool against a naive list, and its file."""

from __future__ import annotations

import doctest
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ouroboros.drafters import pool as pool_module
from ouroboros.drafters.pool import CONTEXT, PhrasePool

token = st.integers(0, 3)
text = st.lists(token, max_size=12)


class NaivePool:
    """A flat list of (key, phrase, before), oldest first."""

    def __init__(self, phrase_len: int, per_key: int) -> None:
        self.phrase_len, self.per_key = phrase_len, per_key
        self.entries: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []

    def of(self, key: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        return [entry for entry in self.entries if entry[0] == key]

    def add(self, key, phrase, before=()):
        phrase = tuple(phrase[: self.phrase_len])
        if not phrase:
            return
        known = [e[2] for e in self.entries if e[:2] == (key, phrase)]
        self.entries = [e for e in self.entries if e[:2] != (key, phrase)]
        self.entries.append((key, phrase, tuple(before) or (known[0] if known else ())))
        if len(self.of(key)) > self.per_key:
            self.entries.remove(self.of(key)[0])

    def replace(self, key, old, new):
        self.entries = [e for e in self.entries if e[:2] != (key, tuple(old))]
        self.add(key, new)

    def get(self, key, count, before=()):
        def agreement(entry):
            shared = 0
            while shared < min(len(before), len(entry[2])):
                if before[-1 - shared] != entry[2][-1 - shared]:
                    break
                shared += 1
            return shared

        newest = self.of(key)[::-1]
        return [e[1] for e in sorted(newest, key=agreement, reverse=True)][: max(0, count)]


action = st.one_of(
    st.tuples(st.just("add"), token, text, text),
    st.tuples(st.just("replace"), token, st.lists(token, max_size=3), text),
    st.tuples(st.just("get"), token, st.integers(0, 4), text),
)


@given(st.integers(1, 3), st.integers(1, 3), st.lists(action, max_size=40))
def test_pool_does_what_a_naive_list_does(phrase_len, per_key, actions):
    pool, naive = PhrasePool(phrase_len=phrase_len, per_key=per_key), NaivePool(phrase_len, per_key)
    for name, key, first, second in actions:
        if name == "get":
            assert pool.get(key, first, before=second) == naive.get(key, first, second)
        else:
            getattr(pool, name)(key, first, second)
            getattr(naive, name)(key, first, second)
    assert len(pool) == len(naive.entries)
    assert sorted(pool) == sorted(entry[:2] for entry in naive.entries)


@given(text, st.integers(0, 12), st.integers(1, 3))
def test_add_text_adds_each_new_phrase_once(tokens, start, length):
    pool, naive = PhrasePool(phrase_len=length, per_key=3), NaivePool(length, 3)
    pool.add_text(tokens, start)
    for at in range(len(tokens) - length):
        if at + length >= start:
            naive.add(
                tokens[at], tokens[at + 1 : at + 1 + length], tokens[max(0, at - CONTEXT) : at]
            )
    for key in range(4):
        assert pool.get(key, 3, before=[1, 2, 3]) == naive.get(key, 3, [1, 2, 3])


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(1, 5), max_size=8))
def test_text_added_in_pieces_is_text_added_at_once(tokens, pieces):
    whole, parts = (PhrasePool(phrase_len=2, per_key=4) for _ in range(2))
    whole.add_text(tokens)
    seen = 0
    for piece in [*pieces, len(tokens)]:
        parts.add_text(tokens[: seen + piece], seen)
        seen = min(len(tokens), seen + piece)
    assert list(whole) == list(parts)


def test_docstrings_hold():
    result = doctest.testmod(pool_module)
    assert result.attempted and not result.failed


phrase = st.lists(token, min_size=1, max_size=3)


@given(st.lists(st.tuples(token, phrase, text), max_size=20), text)
def test_a_saved_pool_comes_back_with_its_contexts(tmp_path_factory, entries, before):
    path = tmp_path_factory.mktemp("pool") / "pool.json"
    pool = PhrasePool(phrase_len=3, per_key=2)
    for entry in entries:
        pool.add(*entry)
    pool.save(path, tokenizer_id="ours")
    loaded = PhrasePool.load(path, tokenizer_id="ours", phrase_len=3, per_key=2)
    assert list(loaded) == list(pool)
    for key in range(4):
        assert loaded.get(key, 2, before=before) == pool.get(key, 2, before=before)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    smaller = PhrasePool.load(path, tokenizer_id="ours", phrase_len=3, per_key=1)
    assert all(smaller.get(key, 9) == pool.get(key, 1) for key in range(4))


def test_a_copy_is_another_pool_with_the_same_contexts():
    pool = PhrasePool(phrase_len=1, per_key=2)
    pool.add(1, [5], before=[3, 4])
    pool.add(1, [6])
    copied = pool.copy()
    pool.add(1, [7])
    assert copied.get(1, 2, before=[3, 4]) == [(5,), (6,)]
    pool.restore(copied)
    copied.clear()
    assert pool.get(1, 9, before=[3, 4]) == [(5,), (6,)]
    with pytest.raises(ValueError, match="the same sizes"):
        pool.restore(PhrasePool(phrase_len=2, per_key=2))


@pytest.fixture
def saved(tmp_path):
    pool = PhrasePool(phrase_len=2, per_key=2)
    pool.add(1, [2, 3])
    path = tmp_path / "pool.json"
    pool.save(path, tokenizer_id="ours")
    return path


BROKEN = {
    "empty": b"",
    "cut short": b'{"format": "ouroboros-phrase-pool-2", "tok',
    "binary": b"\xff\xfe\x00\x01",
    "another JSON": b"[1, 2]",
    "null": b"null",
    "another format": b'{"format": "ouroboros-phrase-pool-1"}',
    "no phrases": b'{"format": "ouroboros-phrase-pool-2", "tokenizer": "ours", "phrase_len": 2}',
}
BAD_PHRASES = [
    *({"x": [[[1, 2], []]]}, {"1": 5}, {"1": [5]}, {"1": [["a", "b"]]}, [1], None),
    *({"1": [[[-1], []]]}, {"1": [[[1], [-1]]]}, {"1": [[[1]]]}, {"1": [[[1], [], []]]}),
]


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_corrupt_file_is_refused_in_one_line(saved, content):
    saved.write_bytes(content)
    refused(saved, "holds no phrase pool of this version: make a new one")


@pytest.mark.parametrize("phrases", BAD_PHRASES, ids=str)
def test_damaged_phrases_are_refused_in_one_line(saved, phrases):
    content = json.loads(saved.read_text())
    saved.write_text(json.dumps({**content, "phrases": phrases}))
    refused(saved, "holds no phrase pool of this version: make a new one")


def test_foreign_files_are_refused_in_one_line(saved, tmp_path):
    refused(saved, r"another tokenizer \(ours\): make a new one", tokenizer_id="theirs")
    refused(saved, "phrases of 2 tokens, ngram_size asks for 3: make a new one", phrase_len=3)
    refused(tmp_path / "none.json", "cannot read the phrase pool")
    refused(tmp_path, "cannot read the phrase pool")


def refused(path, reason: str, **changes) -> None:
    wanted = {"tokenizer_id": "ours", "phrase_len": 2, "per_key": 2, **changes}
    with pytest.raises(ValueError, match=reason) as refusal:
        PhrasePool.load(path, **wanted)
    assert "\n" not in str(refusal.value) and path.name in str(refusal.value)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 3)])
def test_a_pool_without_room_is_refused(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        PhrasePool(phrase_len=sizes[0], per_key=sizes[1])
