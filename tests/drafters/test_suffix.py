"""The suffix tree against counting by hand, and the drafts of suffix decoding."""

import random
from collections import Counter

import pytest
from ouroboros.baselines import SuffixDecoding
from ouroboros.baselines.suffix import branches, chain
from ouroboros.baselines.suffix_tree import END, SuffixTree

from ouroboros.calls import alone
from ouroboros.core.select import argmax
from ouroboros.decode import proposed
from ouroboros.engine.sequence import TreeModel


def grown(texts: list[list[int]], depth: int = 6, **changes) -> SuffixTree:
    tree = SuffixTree(depth=depth, **changes)
    for text in texts:
        tree.extend(text)
        tree.close()
    return tree


def letters(length: int, seed: int, vocab: int = 3) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(vocab) for _ in range(length)]


def occurrences(text: list[int], string: list[int]) -> int:
    starts = range(len(text) - len(string) + 1)
    return sum(text[start : start + len(string)] == string for start in starts)


def at(tree: SuffixTree, string: list[int]):
    """Where a string stands, found by following it; None where it does not occur."""
    places = []
    for token in string:
        places = tree.follow(places, token)
    return places[len(string) - 1] if len(places) == len(string) else None


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_counting_by_hand(seed):
    text, tree = letters(60, seed), SuffixTree(depth=6)
    for end, token in enumerate(text, start=1):
        tree.extend([token])
        now = text[:end]
        longest = 0
        for length in range(1, min(6, end + 1)):
            if occurrences(now, now[-length:]) > 1:
                longest = length
        assert len(tree.active) == longest
        for length, node in enumerate(tree.active, start=1):
            assert tree.counts[node] == occurrences(now, now[-length:])
            after = {tree.token(below): count for count, below in tree.after(tree.position(node))}
            wanted = {t: occurrences(now, [*now[-length:], t]) for t in range(3)}
            assert after == {t: count for t, count in wanted.items() if count}
            assert tree.followed[node] == sum(wanted.values())
            best = tree.best[node]
            assert tree.counts[best] == max(wanted.values())


@pytest.mark.parametrize("seed", range(4))
def test_following_finds_every_string_of_closed_texts_and_no_other(seed):
    texts = [letters(12, seed), letters(9, seed + 50), letters(1, seed + 90)]
    tree = grown(texts)
    for trial in range(60):
        string = letters(1 + trial % 5, 1000 * seed + trial)
        total = sum(occurrences(text, string) for text in texts)
        place = at(tree, string)
        assert (place is not None) == (total > 0)
        if place is not None:
            found = Counter({tree.token(b): count for count, b in tree.after(place)})
            assert found == Counter(
                {t: n for t in range(3) if (n := sum(occurrences(x, [*string, t]) for x in texts))}
            )


def test_memory_is_bounded_and_the_newest_texts_stay():
    texts = [letters(40, seed, vocab=9) for seed in range(30)]
    tree = grown(texts, memory=200)
    assert len(tree.text) <= 200 and tree.text.count(END) >= 2
    assert at(tree, texts[-1][-5:]) is not None
    kept = " ".join(map(str, tree.text)).split(f" {END}")
    kept_texts = [list(map(int, text.split())) for text in kept]
    for token in range(9):
        place = at(tree, [token])
        assert place is not None
        for count, below in tree.after(place):
            string = [token, tree.token(below)]
            assert count == sum(occurrences(text, string) for text in kept_texts)
    assert len(tree.tokens) <= tree.depth * 200


def drafted(text: list[int], budget: int = 99, **changes) -> list[int]:
    drafter = SuffixDecoding(**{"max_tokens": 8, **changes})
    drafter.reset(argmax)
    return list(drafter.propose(text, budget).tokens[1:])


TEXT = [1, 2, 3, 4, 6, 9, 2, 3, 5, 8, 7, 2, 3, 5, 8, 1, 2, 3]
UNSURE = [1, 2, 3, 6, 1, 2, 4, 7, 2, 3, 8, 2, 3, 9, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("text", "options", "draft"),
    [
        (TEXT, {"factor": 1}, [4, 6, 9]),
        (TEXT, {"factor": 0, "offset": 2}, [4, 6]),  # 2.0 against 2 x 2/3
        ([9, *TEXT[3:]], {"factor": 0, "offset": 2}, [5, 8]),
        (TEXT, {"factor": 1, "budget": 2}, [4]),
        (TEXT, {"factor": 1, "budget": 1}, []),
        ([5, 6, 7], {"factor": 4}, []),
        (UNSURE, {"least": 0.6, "factor": 0, "offset": 1}, [3]),  # 1/2 after "1 2", 4/5 after "2"
        (UNSURE, {"least": 0.9, "factor": 0, "offset": 1}, []),
        ([9, 1, 2, 3, 1, 2, 3, 1, 2], {"factor": 4}, [3, 1, 2, 3, 1, 2, 3, 1]),  # round and round
    ],
)
def test_drafts_by_hand(text, options, draft):
    """In TEXT, after "2 3" stood 4 once and 5 twice; after "1 2 3" only 4. The longer match
    promises two sure tokens (its limit: 3), the shorter one 5 with two thirds and what follows."""
    assert drafted(text, **options) == draft


def test_a_path_and_a_tree_of_likely_continuations():
    tree = grown([[1, 2, 3, 5], [1, 2, 3, 6], [1, 2, 4, 7], [1, 2, 3, 5]])
    place = at(tree, [1, 2])  # 3 three times of four, then 5 twice of three; 4 once
    assert place is not None
    draft = chain(tree, place, 9, 0.1)
    assert draft.tokens == [3, 5] and draft.score == pytest.approx(3 / 4 + 2 / 4)
    assert chain(tree, place, 9, 0.6).tokens == [3] and chain(tree, place, 9, 0.8).tokens == []
    wide = branches(tree, place, 9, 0.2)
    assert (wide.tokens[:2], wide.parents[:2]) == ([3, 5], [-1, 0])
    assert set(zip(wide.tokens, wide.parents, strict=True)) >= {(4, -1), (6, 0)}
    assert len(wide.tokens) == 5 and wide.score == pytest.approx(3 / 4 + 2 / 4 + 3 * 1 / 4)
    assert branches(tree, place, 9, 0.3).tokens == [3, 5]


def test_what_the_last_step_accepted_is_kept_too():
    drafter = SuffixDecoding(max_tokens=3, factor=9, state="task")
    drafter.reset(argmax)
    tree = drafter.propose([7, 4, 5, 6, 7], 9)
    drafter.observe(tree, [4, 5, 8, -1], [0, 1, 2])
    drafter.reset(argmax)
    assert drafter.propose([1, 4], 9).tokens[1:] == (5,)


@pytest.mark.parametrize("branching", [False, True])
def test_past_outputs_are_kept_with_state_task_only(branching):
    for state, wanted in (("cold", ()), ("task", (4, 5, 6))):
        drafter = SuffixDecoding(max_tokens=3, factor=9, state=state, branches=branching)
        drafter.reset(argmax)
        for end, token in enumerate(written := [3, 4, 5, 6, 0]):
            drafter.observe(drafter.propose([7, 8, *written[:end]], 1), [token], [0])
        drafter.reset(argmax)
        assert drafter.propose([9, 3], 9).tokens[1:] == wanted
        assert drafter.propose([9, 3, 7], 9).tokens[1:] == ()  # a prompt is not kept


class Model(TreeModel):
    """A draft model that always says 0."""

    max_len = 1000

    def roll(self, sequence, tokens, count, choose):
        return [0] * count


@pytest.mark.parametrize(("threshold", "source"), [(3, "prompt"), (3.1, "draft"), (None, "draft")])
def test_the_draft_model_drafts_where_the_suffix_promises_less(threshold, source):
    drafter = SuffixDecoding(Model(), max_tokens=3, factor=9, gamma=4, threshold=threshold)
    drafter.reset(argmax)
    # 2, 3, 4 have stood after 1: the score is 3
    tree = alone(proposed(drafter, [1, 2, 3, 4, 1], 9))
    assert set(tree.source[1:]) == {source}
