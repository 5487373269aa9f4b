"""Shares of what may follow a node, against the formula spelled out."""

import pytest
from growing_texts import chain_text, growth, path_of, step

from ouroboros.drafters.draft_tree.candidates import (
    FADE,
    RECYCLED_WEIGHT,
    STRENGTH,
    find_candidates,
)
from ouroboros.drafters.draft_tree.phrase_index import (
    fill_path,
    newest_recycled,
    previous_recycled,
    recycled_match,
    recycled_token,
)
from ouroboros.drafters.draft_tree.state import ORDERS, RECENT, SHORTLIST


def spelled_out(seen: list[tuple[int, int, float]]) -> dict[int, float]:
    """Shares of (token, match, weight) seen."""
    shares = {}
    for token in {token for token, _, _ in seen}:
        share = 0.0
        for order in ORDERS:
            count = sum(w for t, length, w in seen if length >= order and t == token)
            total = sum(w for _, length, w in seen if length >= order)
            share = (count + STRENGTH * share) / (total + STRENGTH)
        shares[token] = share
    return shares


@pytest.mark.parametrize("vocab", [2, 6, 40])
def test_shares_are_those_of_the_formula(vocab):
    text = chain_text(500, vocab, seed=vocab)
    grown = growth()
    grown.start()
    known, compared = 150, 0
    while known < 400:
        known += step(grown, text, known, vocab=vocab)
        grown.begin(text[:known], 20, -1)
        s, m = grown.state, grown.memory
        for place in range(min(6, int(s.tree_size))):
            node = int(s.order[place])
            depth = fill_path(s, node)
            whole = text[:known] + path_of(grown, node)[1:]
            find_candidates(s, m, node)
            seen = []
            for age in range(s.occurrences[node]):
                at = int(s.occurrence[node, age])
                match = int(s.match[node, age])
                seen.append((whole[at + 1], match, FADE**age))
            number = newest_recycled(s, m, s.token[node])
            for age in range(RECENT):
                if number:
                    match = int(recycled_match(s, m, number, depth))
                    seen.append(
                        (int(recycled_token(m, number)), match, RECYCLED_WEIGHT * FADE**age)
                    )
                    number = previous_recycled(s, m, number)
            found = {int(s.candidate[c]): float(s.share[c]) for c in range(s.candidates)}
            assert found == pytest.approx(spelled_out(seen), abs=1e-12)
            listed = [float(s.share[s.shortlist[i]]) for i in range(s.listed)]
            assert listed == sorted(found.values(), reverse=True)[:SHORTLIST]
            compared += len(found)
        known += 1
        grown.forget()
        grown.start()
    assert compared > 100
