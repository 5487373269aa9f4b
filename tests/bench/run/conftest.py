"""The models that the tests of a run share."""

import pytest
from bench_models import tiny_pair


@pytest.fixture(scope="session")
def pair():
    return tiny_pair()
