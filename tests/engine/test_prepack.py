"""Packed linear layers compute what plain ones do, row by row."""

import copy

import pytest
import torch
from tiny import RandomDrafter, gemma3, plain
from torch import nn

from ouroboros import CachedModel, decode
from ouroboros.engine import prepack
from ouroboros.engine.prepack import MOST, ROWS, Packed, PackedWeights, prepack_linears

DTYPES = [torch.float32, torch.bfloat16]
FASTER = [9.0] * len(ROWS), [1.0] * len(ROWS)


@pytest.fixture(autouse=True)
def small_and_faster(monkeypatch):
    monkeypatch.setattr(prepack, "SMALLEST", {})
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER)


@pytest.mark.parametrize(
    ("width", "columns"),
    [(48, 80), (384, 80), (8192, 80), (64, 80), (320, 13), (1024, 192), (1600, 64)],
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_packed_layer_computes_what_a_plain_one_does_row_by_row(dtype, bias, width, columns):
    torch.manual_seed(0)
    layer = nn.Linear(width, columns, bias=bias, dtype=dtype)
    alone, before = copy.deepcopy(layer), dict(vars(layer))
    x = torch.randn(1, MOST + 5, width, dtype=dtype)  # more rows than the kernel takes
    with torch.inference_mode(), prepack_linears(layer).used():
        assert "forward" in vars(layer)
        found = layer(x)
        for rows in (1, 2, 3, 4, 5, 16, 48, 64):
            for start in (0, x.shape[1] - rows):
                part = layer(x[:, start : start + rows])
                assert torch.equal(part, found[:, start : start + rows]), rows
        slack = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(found, alone(x), rtol=10 * slack, atol=slack)
        assert layer(x[:, :0]).shape == (1, 0, columns)
    assert vars(layer) == before, "its own outside of our calls"


def test_both_ways_are_timed(monkeypatch):
    packed = prepack_linears(nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))))
    monkeypatch.undo()
    plain_ms, packed_ms = prepack._time_both(packed)
    assert len(plain_ms) == len(packed_ms) == len(ROWS) and min(*plain_ms, *packed_ms) > 0


def test_layers_of_one_input_share_a_product():
    """As one, or each alone, as within transformers' own generation."""
    torch.manual_seed(0)
    layers = nn.Linear(48, 80), nn.Linear(48, 24, bias=False), nn.Linear(48, 70)
    x, packed = torch.randn(5, 48), Packed(layers)
    expected = [layer(x) for layer in layers]
    torch.testing.assert_close(packed.multiply(x), torch.cat(expected, -1))
    with torch.no_grad(), PackedWeights({layers: packed}).used():
        assert all("forward" in vars(layer) for layer in layers)
        for layer, right in zip(layers, expected, strict=True):
            torch.testing.assert_close(layer(x), right)


def test_what_is_not_packed(monkeypatch):
    class Own(nn.Linear):
        """Somebody's own layer."""

    odd = nn.Linear(47, 80, dtype=torch.bfloat16)
    for layer in (Own(48, 80), nn.Linear(48, 80, dtype=torch.float64), odd):
        assert not prepack_linears(layer)
    monkeypatch.setattr(prepack, "FREE_SHARE", 0.0)
    assert not prepack_linears(nn.Linear(48, 80)), "no memory"
    monkeypatch.setattr(prepack, "FREE_SHARE", 0.9)
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER[::-1])
    assert not prepack_linears(nn.Linear(48, 80)), "slower"
    timings = iter([FASTER[::-1], FASTER[::-1], FASTER])
    monkeypatch.setattr(prepack, "_time_both", lambda layers: next(timings))
    assert prepack_linears(nn.Linear(48, 80)), "slower twice, on a busy machine"
    monkeypatch.undo()
    assert not prepack_linears(nn.Linear(48, 80)), "small"


def test_text_is_that_of_plain_layers():
    model = gemma3().float()
    wanted = plain(model, [1, 5, 4], 40)
    cached = CachedModel(model)
    assert len(cached.engine.packed) == 15
    trees = RandomDrafter(wanted, seed=3)
    assert list(decode(cached, trees, [1, 5, 4], max_new=40).tokens) == wanted
