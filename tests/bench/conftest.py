"""The models that the tests of runs and replays share."""

import pytest
from bench_models import tiny_pair


@pytest.fixture(scope="session")
def pair():
    return tiny_pair()


@pytest.fixture
def saved(pair, tmp_path):
    """A folder with the pair's models."""
    for name, model in zip(("target", "draft"), pair, strict=True):
        model.model.save_pretrained(tmp_path / name)
        model.tokenizer.save_pretrained(tmp_path / name)
    return tmp_path
