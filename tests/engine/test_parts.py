"""A tree scored in several calls gives the logits of one call, and nothing is fed twice."""

import random

import pytest
import torch
from parts import first, in_parts
from tiny import llama, random_tree, session

from ouroboros import TokenTree, argmax
from ouroboros.engine import eager
from ouroboros.engine.static import NODES

ENGINES = ["eager", "static"]
EXACT = {"rtol": 0, "atol": 1e-12}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("missing", [1, eager.PREFILL_ALONE + 2, NODES[-1] - 3, 300, 700, 1500])
def test_after_a_prompt_of_any_length(engine, missing):
    """The cache grows between two parts; those already in it are not lost."""
    model = llama(max_position_embeddings=2048, num_hidden_layers=2)
    whole, parts = session(model, engine="eager"), session(model, engine=engine)
    tokens = [1 + i % 11 for i in range(missing)]
    tree = random_tree(random.Random(3), tokens[-1], 300, near=4)
    expected = whole.score(tokens, tree)
    found = in_parts(parts.score, tokens, tree, [1, 5, 6, 40, 200, 280])
    torch.testing.assert_close(found, expected, **EXACT)


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
