"""Functions that the host calls in each step are called without a look at the arguments' types."""

import numpy as np
import pytest

from ouroboros.drafters.growth import step
from ouroboros.drafters.growth.compiled import COMPILED, Direct, compiled, directly

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


def test_the_parts_of_a_step_are_called_directly():
    assert all(isinstance(f, Direct) for f in (step.begin, step.scored, step.propose, step.read_of))
