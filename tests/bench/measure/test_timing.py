"""Measuring calls on tiny models: what is measured, and never how fast it was."""

import random

import pytest
import torch
from bench_models import tiny_pair
from tiny import llama

from ouroboros import CachedModel
from ouroboros.bench.measure.timing import copy_bandwidth, footprint, measure, random_tree


def test_a_surface_has_every_size_at_every_context():
    model = tiny_pair()[0]
    visits = []
    told = {"on_visit": lambda: visits.append(list(model.tokens))}
    nodes, contexts = [4, 1, 2], [9, 5]
    surface = measure(model, nodes=nodes, contexts=contexts, visits=2, repeats=2, **told)
    assert {c: list(row) for c, row in surface.ms.items()} == {5: [1, 2, 4], 9: [1, 2, 4]}
    assert all(ms > 0 for row in surface.ms.values() for ms in row.values())
    assert surface.spread_ms.keys() == surface.ms.keys()
    assert [len(tokens) for tokens in visits] == [4, 8, 4, 8]
    assert model.tokens == []
    assert model.calls == 2 * 2 * (1 + 2 * 3) + 2 * 3


def test_trees_branch():
    draw = random.Random(0)
    assert [random_tree(n, draw=draw).is_chain for n in (1, 2, 3, 9)] == [True, True, False, False]


def test_what_cannot_be_measured_is_one_line():
    model = CachedModel(llama())
    with pytest.raises(ValueError, match="64 positions: measure shorter contexts"):
        measure(model, nodes=[1, 8], contexts=[64])
    with pytest.raises(ValueError, match="each 1 or more"):
        measure(model, nodes=[], contexts=[4])


def test_bytes_of_a_model():
    model = llama(dtype=torch.float32)
    found = footprint(CachedModel(model))
    assert found.weight_bytes == sum(w.numel() * 4 for w in model.parameters())
    assert found.read_bytes == found.weight_bytes - 4 * 13 * 16
    assert found.kv_bytes_per_token == 4 * 1 * 2 * (4 + 4)
    tied = footprint(CachedModel(llama(tie_word_embeddings=True)))
    assert tied.read_bytes == tied.weight_bytes


def test_copies_have_a_bandwidth():
    assert copy_bandwidth(torch.device("cpu"), buffer_bytes=1 << 16) > 0
