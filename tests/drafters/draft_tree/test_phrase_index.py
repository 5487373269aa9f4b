"""The suffix index and the recycled predictions, against looking everywhere."""

import random

import pytest
from growing_texts import chain_text, growth, path_of, step

from ouroboros.drafters.draft_tree.phrase_index import (
    fill_path,
    newest_recycled,
    previous_recycled,
    recycle,
    recycled_match,
    recycled_token,
)
from ouroboros.drafters.draft_tree.state import CONTEXT, LONGEST, OCCURRENCES, RING


def everywhere(text: list[int], path: list[int]) -> list[tuple[int, int]]:
    """(position, match) of the newest occurrences of a path's last token that have a next one."""
    whole = text + path[1:]
    found = []
    for position in range(len(whole) - 2, -1, -1):
        length = 0
        while (
            length < min(LONGEST, position + 1)
            and whole[position - length] == whole[len(whole) - 1 - length]
        ):
            length += 1
        if length:
            found.append((position, length))
    return found[:OCCURRENCES]


@pytest.mark.parametrize(
    ("vocab", "length"), [(2, 400), (3, 90), (20, 400), (5, 1), (5, 2), (1, 99)]
)
def test_maps_made_down_the_tree_are_those_made_from_scratch(vocab, length):
    """With two tokens, each occurs more often than is looked at: matches further back count."""
    text = chain_text(length + 60, vocab, seed=length)
    grown = growth(call=9.0)
    grown.start()
    known, compared = max(1, length - 30), 0
    while known <= length:
        grown.begin(text[:known], 20, -1)
        s = grown.state
        compared += int(s.tree_size)
        for place in range(s.tree_size):
            node = int(s.order[place])
            found = [
                (int(s.occurrence[node, i]), int(s.match[node, i]))
                for i in range(s.occurrences[node])
            ]
            assert found == everywhere(text[:known], path_of(grown, node))
        known += 7
    assert compared > (9 if length > 50 else 0)


def test_a_second_sequence_does_not_run_into_the_first():
    grown = growth(call=9.0)
    for text in ([1, 2, 3, 4], [3, 5, 3], [1, 2]):
        grown.start()
        grown.begin(text, 9, -1)
    s = grown.state
    after = {int(s.child_token[0, i]) for i in range(s.children[0])}
    assert after == {3}
    assert [int(s.match[0, i]) for i in range(s.occurrences[0])] == [2]


def remembered(entries, path, token):
    """(choice, shared) of an entry list, the newest first, looking at all of them."""
    found = []
    for context, choice in reversed(entries):
        if context[0] == token:
            count = 0
            for a, b in zip(context, path[::-1], strict=False):
                if a != b or a < 0:
                    break
                count += 1
            found.append((choice, min(count, CONTEXT)))
    return found


def found_by_chain(s, m, token):
    """(choice, shared) of the ring's entries after a token, by following their chain."""
    found, number = [], newest_recycled(s, m, token)
    while number:
        found.append((int(recycled_token(m, number)), int(recycled_match(s, m, number, 0))))
        number = previous_recycled(s, m, number)
    return found


def test_recycled_predictions_are_found_until_they_are_overwritten():
    draw = random.Random(3)
    grown = growth(call=9.0)
    grown.start()
    text, entries = [draw.randrange(3) for _ in range(4)], []
    for turn in range(40):
        text.append(draw.randrange(3))
        grown.begin(text, 5, -1)
        s, m = grown.state, grown.memory
        fill_path(s, 0)
        assert found_by_chain(s, m, text[-1]) == remembered(entries, text, text[-1])
        recycle(s, m, 0, turn % 5)
        entries.append(([*text[::-1], *[-1] * CONTEXT][:CONTEXT], turn % 5))
    s.recycled = RING + 25  # as if as many had come as overwrite the first 25
    assert found_by_chain(s, m, text[-1]) == remembered(entries[25:], text, text[-1])


def test_nothing_is_recycled_where_that_is_off():
    grown = growth(recycle=False)
    text = chain_text(300, 20)
    grown.start()
    known = 100
    while known < 200:
        known += step(grown, text, known, vocab=20)
    assert grown.state.recycled == 0
