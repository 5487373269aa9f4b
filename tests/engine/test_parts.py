"""A tree scored in several calls gives the logits of one call, and nothing is fed twice."""

import pytest
import torch
from parts import first
from tiny import llama, session

from ouroboros import TokenTree, argmax

ENGINES = ["eager", "static"]
EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_not_scored_last_is_fed_again(engine):
    """Another sequence, other first nodes, an accepted path, a roll, a cache made ready."""
    model, tree = llama(), TokenTree((5, 1, 2, 3, 4), (-1, 0, 1, 0, 3))
    expected = session(model).score([3, 4, 5], tree).clone()
    cached = session(model, engine=engine)

    def go_on(fed: int) -> None:
        before = cached.scored
        logits = cached.score([3, 4, 5], tree.with_logits_at([3, 4]))
        torch.testing.assert_close(logits, expected[3:], **EXACT)
        assert cached.scored - before == fed

    start = first(tree, 3)
    go_on(5)
    go_on(2)
    cached.score([3, 4, 5], start)
    go_on(2)
    cached.score([3, 9, 5], start)
    go_on(5)
    cached.score([3, 4, 5], TokenTree((5, 1, 9), (-1, 0, 1)))
    go_on(3)
    cached.score([3, 4, 5], TokenTree((5, 1, 2), (-1, 0, 0)))
    go_on(3)
    cached.score([3, 4, 5], start)
    cached.accept([0])
    go_on(5)
    cached.roll([3, 4, 5], 3, argmax)
    go_on(5)
    cached.score([3, 4, 5, 5], TokenTree((5, 1), (-1, 0)))
    go_on(5)
    cached.prepare(10)
    go_on(5)
