"""The noise of single tokens is the sampler's own."""

import numpy as np
import pytest

from ouroboros.drafters.draft_tree.noise import gumbel_of, position_key
from ouroboros.select import gumbel


@pytest.mark.parametrize("seed", [0, 1, 123456789, 2**62 + 12345])
@pytest.mark.parametrize("position", [0, 7, 4095])
def test_single_values_are_those_of_the_row(seed, position):
    row = gumbel(seed, position, 300, "cpu").numpy()
    key = position_key(seed, position)
    assert [np.float32(gumbel_of(key, token)) for token in range(300)] == row.tolist()
