"""Occurrences, recycled predictions and shares, against brute force and the formula."""

from __future__ import annotations

import numpy as np
import pytest
from growing_texts import chain_text, growth, path_of, step
from tiny import mostly_slow

from ouroboros.drafters.draft_tree import candidates, state
from ouroboros.drafters.draft_tree.phrase_index import fill_path


def occurrences(whole: list[int], history: bool) -> list[tuple[int, int]]:
    """(position, match) of the newest occurrences of the last token that have a next one; with
    history, older ones after the same token too."""
    found = []
    for position in range(len(whole) - 2, -1, -1):
        ends = zip(whole[position::-1], whole[:0:-1], strict=False)
        length = next((n for n, (a, b) in enumerate(ends) if a != b or a < 0), position + 1)
        if length:
            found.append((position, min(length, state.LONGEST)))
    if not history:
        return found[: state.OCCURRENCES]
    older = [(position, length) for position, length in found[state.WITH_HISTORY :] if length > 1]
    return found[: state.WITH_HISTORY] + older[: state.OLDER]


def recycled(entries: list[list[int]], path: list[int]) -> list[tuple[int, int]]:
    """(token, match) of the newest predictions recycled after a path's last token."""
    found = []
    for *context, token in reversed(entries[-state.RING :]):
        pairs = enumerate(zip(context, [*path[::-1], *[-2] * state.CONTEXT], strict=False))
        match = next((n for n, (a, b) in pairs if a != b or a < 0), state.CONTEXT)
        if match:
            found.append((token, match))
    return found[: state.RECENT]


def shares(seen: list[tuple[int, int, float]]) -> dict[int, float]:
    """Shares of (token, match, weight) seen, by the formula."""
    found = {}
    for token in {token for token, _, _ in seen}:
        share = 0.0
        for order in state.ORDERS:
            count = sum(w for t, length, w in seen if length >= order and t == token)
            total = sum(w for _, length, w in seen if length >= order)
            share = (count + candidates.STRENGTH * share) / (total + candidates.STRENGTH)
        found[token] = share
    return found


def check_candidates(grown) -> int:
    """Compare the candidates after the likeliest nodes; return how many there are."""
    s, m, kept = grown.state, grown.memory, grown.state_dict()
    compared = 0
    for node in s.order[: min(6, s.tree_size)].tolist():
        fill_path(s, node)
        candidates.find_candidates(s, m, node)
        whole = kept["text"] + path_of(grown, node)[1:]
        places = occurrences(whole, bool(s.start))
        listed = zip(s.occurrence[node].tolist(), s.match[node].tolist(), strict=True)
        assert list(listed)[: s.occurrences[node]] == places
        seen = [(whole[at + 1], n, candidates.FADE**age) for age, (at, n) in enumerate(places)]
        for age, (token, match) in enumerate(recycled(kept["recycled"], whole)):
            seen.append((token, match, candidates.RECYCLED_WEIGHT * candidates.FADE**age))
        found = {int(s.candidate[c]): float(s.share[c]) for c in range(s.candidates)}
        assert found == pytest.approx(shares([one for one in seen if one[0] >= 0]), abs=1e-12)
        shortlist = [float(s.share[c]) for c in s.shortlist[: s.listed]]
        assert shortlist == sorted(found.values(), reverse=True)[: state.SHORTLIST]
        compared += len(found)
    return compared


@pytest.mark.parametrize(
    ("vocab", "length"),
    mostly_slow(
        [(2, 180), (3, 90), (6, 300), (20, 400), (40, 300), (5, 1), (5, 2), (1, 60)],
        quick=[(2, 180), (3, 90), (5, 1), (5, 2), (1, 60)],
    ),
)
def test_candidates_are_those_of_all_texts(vocab, length):
    """With two tokens, each occurs more often than is looked at: matches further back count."""
    grown = growth(start=False)
    for seed in (1, 2):
        text = chain_text(length + 300, vocab, seed=seed)
        grown.start()
        known, compared = max(1, length - 60), 0
        while known <= length:
            known += step(grown, text, known, vocab=vocab)
            grown.begin(text[:known], 20, -1)
            compared += check_candidates(grown)
            known += 1
        assert compared > 9 or length < 50


def test_a_second_sequence_does_not_run_into_the_first():
    grown = growth(call=9.0)
    for text in ([1, 2, 3, 4], [3, 5, 3], [1, 2]):
        grown.start()
        grown.begin(text, 9, -1)
    s = grown.state
    assert set(s.child_token[0, : s.children[0]].tolist()) == {3}
    assert s.match[0, : s.occurrences[0]].tolist() == [2]


def test_recycled_predictions_are_found_until_they_are_overwritten():
    grown = growth(call=9.0, start=False)
    oldest, other = [[token, *[-1] * (state.CONTEXT - 1), 7] for token in (3, 9)]
    kept = {**grown.state_dict(), "recycled": [oldest, *[other] * (state.RING - 1)]}
    grown.load_state_dict(kept)
    assert grown.state_dict() == kept
    for text, found in (([5, 3], [7]), ([8, 9, 4, 8, 9], [7, 4]), ([5, 3], [])):
        grown.start()
        grown.begin(text, 5, -1)
        s = grown.state
        assert set(s.child_token[0, : s.children[0]].tolist()) == set(found)
        tree = grown.proposal()
        grown.learn([1] * len(tree), [0])  # rejects all, and recycles what follows each node
    assert len(grown.state_dict()["recycled"]) == state.RING


def test_nothing_is_recycled_where_that_is_off():
    grown, text, known = growth(recycle=False), chain_text(300, 20), 100
    while known < 200:
        known += step(grown, text, known, vocab=20)
    assert grown.state_dict()["recycled"] == []


def test_runners_up_are_candidates_until_the_sequence_ends():
    """After 5 the target ranked 7, then 8; after 9, off the accepted path, 6."""
    grown = growth(call=9.0, start=False)
    grown.start()
    grown.begin([1, 5, 9, 1, 5], 9, -1)
    tree = grown.proposal()
    assert tree.tokens[:2] == (5, 9)
    ids = np.full((2, state.RUNNERS), -1)
    ids[0, :2], ids[1, 0] = (7, 8), 6
    shares = np.zeros((2, state.RUNNERS))
    shares[0, :2], shares[1, 0] = (0.75, 0.25), 1.0
    grown.store_rankings(ids, shares)
    grown.learn([7, *[6] * (len(tree) - 1)], [0])
    for text, found in (([7, 5], {7: 0.75, 8: 0.25}), ([7, 5, 2, 9], {6: 1.0})):
        grown.begin([1, 5, 9, 1, 5, *text], 9, -1)
        s = grown.state
        fill_path(s, 0)
        candidates.find_candidates(s, grown.memory, 0)
        listed = zip(s.candidate.tolist()[: s.candidates], s.runner_share.tolist(), strict=False)
        assert {token: share for token, share in listed if share} == pytest.approx(found)
        assert found.keys() <= set(s.child_token[0, : s.children[0]].tolist())
    grown.start()
    grown.begin([3, 5], 9, -1)
    assert 8 not in grown.state.child_token[0, : grown.state.children[0]]
