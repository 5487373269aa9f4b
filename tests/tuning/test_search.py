"""The coordinate search and its random starts."""

from ouroboros.tuning.search import SPACES, random_settings, search

SPACE = {"a": [0, 1, 2], "b": [0, 1, 2]}


def test_a_search_repeats_until_no_setting_gains():
    """From (0, 0) the best, (2, 2), is only reached by a second round."""
    scores = {(0, 0): 1, (1, 0): 2, (1, 1): 3, (2, 1): 4, (2, 2): 5}
    found = search(lambda own: scores.get((own["a"], own["b"]), 0), SPACE, start={"a": 0, "b": 0})
    assert found == {"a": 2, "b": 2}


def test_random_settings_are_different_reproducible_and_begin_with_the_configured_ones():
    drawn = random_settings(SPACE, 6, "0-x")
    assert drawn[0] == {} and len({str(own) for own in drawn}) == 6
    assert drawn == random_settings(SPACE, 6, "0-x") != random_settings(SPACE, 6, "1-x")
    assert len(random_settings(SPACE, 99, "0-x")) == 10, "a space of nine has no more"
    assert "ouroboros" in SPACES
