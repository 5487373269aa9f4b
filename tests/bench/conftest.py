"""The models that the tests of runs and replays share."""

import pytest
from bench_models import save_pair, tiny_pair


@pytest.fixture(scope="session")
def pair():
    return tiny_pair()


@pytest.fixture
def saved(pair, tmp_path):
    """A folder with the pair's models."""
    return save_pair(pair, tmp_path)
