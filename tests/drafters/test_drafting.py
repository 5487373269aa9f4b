"""A drafter's own copy of the sequence."""

from __future__ import annotations

from ouroboros.drafters.drafting import Scratch


def test_a_scratch_is_the_sequence_whatever_was_appended_to_it():
    scratch, tokens = Scratch(), [1, 2]
    for more in ([3], [4, 5], [], [6]):
        text = scratch.at(tokens)
        assert text == tokens and text is not tokens
        text += [9, 9, 9]
        tokens += more
    scratch.reset()
    assert scratch.at([7]) == [7]
