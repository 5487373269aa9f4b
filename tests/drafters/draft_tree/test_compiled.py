"""Functions that the host calls in each step are called without a look at the arguments' types."""

import numpy as np
import pytest
from growing_texts import chain_text, growth
from growing_texts import step as one_step

from ouroboros.drafters.draft_tree import learn, step
from ouroboros.drafters.draft_tree.compiled import COMPILED, Direct, compiled, directly

pytestmark = pytest.mark.skipif(not COMPILED, reason="numba is not installed")


def total(values):
    return values.sum()


def test_a_direct_call_gives_what_the_compiled_function_gives():
    direct, looked_up = Direct(compiled(total)), compiled(total)
    for size in (3, 0, 5):
        values = np.arange(size)
        assert direct(values) == looked_up(values)
    assert len(direct.dispatcher.signatures) == 1 and direct.call is not None


def test_its_errors_are_the_callers():
    direct = directly(total)
    direct(np.arange(3))
    with pytest.raises(TypeError):
        direct([1, 2])


def test_the_parts_of_a_step_are_ever_called_with_the_same_types(monkeypatch):
    """Through new prompts, longer arrays, wider vocabularies and what was remembered."""
    parts = (step.begin, step.scored, step.propose, step.read_of, learn.learn)
    assert all(isinstance(part, Direct) for part in parts)
    monkeypatch.setattr(Direct, "__call__", lambda self, *args: self.dispatcher(*args))
    grown = growth(vocab=4, call=0.1)
    for vocab, seed, known in ((3, None, 1), (60, 7, 2), (60, 7, 1500)):
        text = chain_text(known + 200, vocab)
        grown.start(seed=seed, temperature=0.0 if seed is None else 0.7)
        for _ in range(6):
            known += one_step(grown, text, known, vocab=vocab)
            grown.read_of([0])
        grown.restore(grown.remembered())
    assert {len(part.dispatcher.signatures) for part in parts} == {1}
