"""The phrase pool against a naive list; saved and loaded state."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ouroboros.baselines import Racer, SuffixDecoding, TokenRecycling
from tiny import StepLog

from ouroboros import CachedModel, Ouroboros, OuroborosPaper, decode
from ouroboros.drafters.pool import CONTEXT, PhrasePool, load_state, save_state

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


def test_a_phrase_with_a_token_that_was_not_drawn_is_left_out():
    pool = PhrasePool(phrase_len=3, per_key=4)
    pool.add(1, [2, -1, 3])
    pool.add(1, [2, 3, 4, -1])
    assert list(pool) == [(1, (2, 3, 4))]


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


phrase = st.lists(token, min_size=1, max_size=3)


@given(st.lists(st.tuples(token, phrase, text), max_size=20), text)
def test_a_restored_pool_holds_the_same_phrases_and_contexts(entries, before):
    pool, loaded, smaller = (PhrasePool(phrase_len=3, per_key=n) for n in (2, 2, 1))
    for entry in entries:
        pool.add(*entry)
    for other in (loaded, smaller):
        other.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert list(loaded) == list(pool)
    for key in range(4):
        assert loaded.get(key, 2, before=before) == pool.get(key, 2, before=before)
        assert smaller.get(key, 9) == pool.get(key, 1)


PROMPTS = [[1, 4, 5, 4, 5, 4, 6], [3, 1, 4, 5, 1, 4], [6, 4, 5, 2, 1], [4, 5, 4]]
CARRYING = {
    "ouroboros": lambda _: Ouroboros(adapt=False, pool_state="task"),
    "ouroboros recycle=False": lambda _: Ouroboros(adapt=False, pool_state="task", recycle=False),
    "paper": lambda draft: OuroborosPaper(draft, gamma=3, ngram_size=3, pool_state="task"),
    "suffix": lambda _: SuffixDecoding(max_tokens=8, factor=4, state="task"),
    "suffix small": lambda _: SuffixDecoding(max_tokens=8, factor=4, state="task", memory=40),
    "recycling": lambda _: TokenRecycling(state="task", read_prompt=True),
    "racer": lambda _: Racer(state="task"),
    "racer small": lambda _: Racer(state="task", memory=40),
}


def decoded(target: CachedModel, drafter, prompts) -> list:
    """The proposed trees of every step over prompts."""
    log = StepLog(drafter)
    for prompt in prompts:
        decode(target, log, prompt, max_new=20)
    return [tree for _, _, tree, _, _ in log.steps]


@pytest.mark.parametrize("name", CARRYING)
def test_a_restored_drafter_continues_as_the_first_would(name, pair, tmp_path):
    """As a resumed run does, after every prompt."""
    target, make = pair[0], partial(CARRYING[name], pair[1])
    whole = decoded(target, make(), PROMPTS)
    assert make().carries_state
    trees = []
    for number, prompt in enumerate(PROMPTS):
        drafter = make()
        if number:
            load_state(drafter, tmp_path / "pool.json", tokenizer_id="ours")
        trees += decoded(target, drafter, [prompt])
        save_state(drafter, tmp_path / "pool.json", tokenizer_id="ours")
    assert trees == whole
    assert whole != [tree for prompt in PROMPTS for tree in decoded(target, make(), [prompt])]
    assert [path.name for path in tmp_path.iterdir()] == ["pool.json"]


@pytest.fixture
def saved(tmp_path):
    """A file of a pool: `save_state` needs no more of a drafter than its state."""
    pool = PhrasePool(phrase_len=2, per_key=2)
    pool.add(1, [2, 3])
    save_state(pool, tmp_path / "pool.json", tokenizer_id="ours")
    return tmp_path / "pool.json"


BROKEN = [b"", b'{"format": "ouroboros-sta', b"\xff\xfe\x00\x01", b"[1, 2]", b"null", b"{}"]
BAD_PHRASES = [
    *({"x": [[[1, 2], []]]}, {"1": 5}, {"1": [5]}, {"1": [["a", "b"]]}, [1], None),
    *({"1": [[[-1], []]]}, {"1": [[[1], [-1]]]}, {"1": [[[1]]]}, {"1": [[[1], [], []]]}),
    *({"2000000000": [[[1], []]]}, {"1": [[[2_000_000_000], []]]}, {"1": [[[1.5], []]]}),
]


@pytest.mark.parametrize("content", [*BROKEN, *BAD_PHRASES], ids=str)
def test_a_damaged_file_is_refused_in_one_line(saved, content):
    if not isinstance(content, bytes):
        whole = json.loads(saved.read_text())
        whole["state"]["phrases"] = content
        content = json.dumps(whole).encode()
    saved.write_bytes(content)
    refused(saved, "holds no pool for PhrasePool .*: make a new file")


def test_foreign_files_are_refused_in_one_line(saved, tmp_path):
    refused(saved, r"another tokenizer \(ours\): make a new file", tokenizer_id="theirs")
    refused(saved, "its phrases have 2 tokens, but ngram_size - 1 is 3", phrase_len=3)
    refused(tmp_path / "none.json", "cannot read the pool")
    refused(tmp_path, "cannot read the pool")
    with pytest.raises(ValueError, match=r"pool for Racer \(another drafter or version\)"):
        load_state(Racer(), saved, tokenizer_id="ours")


def refused(path, reason: str, tokenizer_id: str = "ours", phrase_len: int = 2) -> None:
    pool = PhrasePool(phrase_len=phrase_len, per_key=2)
    with pytest.raises(ValueError, match=reason) as refusal:
        load_state(pool, path, tokenizer_id=tokenizer_id)
    assert "\n" not in str(refusal.value) and path.name in str(refusal.value)
