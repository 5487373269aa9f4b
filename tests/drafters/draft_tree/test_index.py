"""The suffix index and the recycled predictions, against looking everywhere."""

import random

import numpy as np
import pytest
from growing_texts import chain_text, growth, path_of, step

from ouroboros.drafters.draft_tree.compiled import COMPILED
from ouroboros.drafters.draft_tree.index import fill_path
from ouroboros.drafters.draft_tree.recycling import before, choice_of, newest_after, recycle, shared
from ouroboros.drafters.draft_tree.state import CONTEXT, ENTRY, LONGEST, OCCURRENCES


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
        compared += int(s.count)
        for place in range(s.count):
            node = int(s.order[place])
            base = node * OCCURRENCES
            found = [
                (int(s.position[base + i]), int(s.match[base + i]))
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
    after = {int(s.kid_token[i]) for i in range(s.kid_count[0])}
    assert after == {3}
    assert [int(s.match[i]) for i in range(s.occurrences[0])] == [2]


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


@pytest.mark.parametrize("size", [3, 8, 64])
def test_the_ring_keeps_the_newest_entries(size):
    draw = random.Random(size)
    grown = growth(call=9.0)
    grown.start()
    ring = [0] * (size * ENTRY)
    grown.memory = grown.memory._replace(ring=np.array(ring, np.int32) if COMPILED else ring)
    text = [draw.randrange(3) for _ in range(4)]
    entries = []
    for turn in range(40):
        text.append(draw.randrange(3))
        grown.begin(text, 5, -1)
        s, m = grown.state, grown.memory
        fill_path(s, 0)
        path = text
        found, number = [], newest_after(s, m, text[-1])
        while number:
            found.append((int(choice_of(m, number)), int(shared(s, m, number, 0))))
            number = before(s, m, number)
        assert found == remembered(entries[-size:], path, text[-1])
        recycle(s, m, 0, turn % 5)
        context = [*text[::-1], *[-1] * CONTEXT][:CONTEXT]
        entries.append((context, turn % 5))


def test_nothing_is_recycled_where_that_is_off():
    grown = growth(recycle=False)
    text = chain_text(300, 20)
    grown.start()
    known = 100
    while known < 200:
        known += step(grown, text, known, vocab=20)
    assert grown.state.recycled == 0
