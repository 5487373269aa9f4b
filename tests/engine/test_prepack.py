"""Packed linear layers compute what plain ones do, even after weights change."""

import copy

import pytest
import torch
from tiny import RandomDrafter, gemma3, plain
from torch import nn

from ouroboros import CachedModel, decode
from ouroboros.engine import prepack
from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.engine.prepack import ROWS, Packed, PackedWeights, prepack_linears

X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
pytestmark = pytest.mark.skipif(not X86, reason="no oneDNN for this processor")
DTYPES = [torch.float32]
if X86 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
    DTYPES.append(torch.bfloat16)
FASTER = [9.0] * len(ROWS), [1.0] * len(ROWS)


@pytest.fixture(autouse=True)
def small_and_faster(monkeypatch):
    monkeypatch.setattr(prepack, "SMALLEST", {})
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER)


def pair(*, bias: bool = True, dtype: torch.dtype = torch.float32):
    """A layer of a model, its packed weights, and a plain layer of the same weights."""
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias, dtype=dtype)
    own = copy.deepcopy(plain)
    return own, prepack_linears(own), plain


@torch.no_grad()
def same(own: nn.Module, packed: PackedWeights, plain: nn.Module) -> bool:
    weight = next(plain.parameters())
    within = {"rtol": 1e-4, "atol": 1e-5} if weight.dtype != torch.bfloat16 else {"atol": 2e-2}
    inputs = [torch.randn(1, n, weight.shape[1], dtype=weight.dtype) for n in (0, 1, 2, 3, 24, 70)]
    with packed.used():
        found = [own(x) for x in inputs]
    return all(torch.allclose(y, plain(x), **within) for x, y in zip(inputs, found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_a_plain_one_does(bias, dtype):
    own, packed, plain = pair(bias=bias, dtype=dtype)
    assert packed.units and same(own, packed, plain)


def test_a_model_uses_its_own_weights_outside_of_our_calls():
    """Also if they change: the copies are read within `used` alone, and a layer is restored."""
    own, packed, plain = pair()
    before = dict(vars(own))
    with torch.no_grad(), packed.used():
        assert "forward" in vars(own)
    assert vars(own) == before
    for layer in (own, plain):
        with torch.no_grad():
            layer.weight.mul_(2)
        layer(torch.ones(9, 48)).square().sum().backward()
    assert torch.equal(own(torch.ones(2, 48)), plain(torch.ones(2, 48)))
    assert torch.equal(own.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_row_count_goes_the_faster_way(monkeypatch, dtype):
    """As timed: the faster one, and packed products where there is little between them."""
    times = [1.0, 2.0, 1.0, 1.0], [2.0, 1.0, 1.05, 2.0]
    monkeypatch.setattr(prepack, "_time_both", lambda layers: times)
    layer, taken, multiply = nn.Linear(48, 80, dtype=dtype), [], Packed.multiply
    monkeypatch.setattr(
        Packed, "multiply", lambda own, x, bias: taken.append(len(x)) or multiply(own, x, bias)
    )
    packed = prepack_linears(layer)
    assert packed.rows == [2, 4]
    taken.clear()
    with torch.inference_mode(), packed.used():
        for rows in (1, 2, 3, 4, 15, 16, 40):
            layer(torch.randn(rows, 48).to(dtype))
    assert taken == [2, 3, 4, 15]


def test_both_ways_are_timed(monkeypatch):
    units = prepack_linears(nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))).units
    monkeypatch.undo()
    plain_ms, packed_ms = prepack._time_both(units)
    assert len(plain_ms) == len(packed_ms) == len(ROWS) and min(*plain_ms, *packed_ms) > 0


@pytest.mark.parametrize(
    ("width", "columns"), [(384, 80), (8192, 80), (64, 80), (320, 13), (1024, 192), (1600, 64)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(dtype, width, columns):
    """So large calls can use oneDNN, and small ones our kernel."""
    own = nn.Linear(width, columns, dtype=dtype)
    packed = prepack_linears(own, every=True)
    with torch.inference_mode(), packed.used():
        x = torch.randn(1, 64, width, dtype=dtype)
        every = own(x)
        for rows in (1, 2, 3, 4, 16, 48):
            for start in (0, 64 - rows):
                part = own(x[:, start : start + rows])
                assert torch.equal(part, every[:, start : start + rows]), rows


@pytest.mark.parametrize("columns", [80, 13])
def test_our_kernel_computes_all_rows_alone_where_onednn_adds_up_otherwise(columns, monkeypatch):
    """As with torch 2.11: then each row has the bits that it has alone, in any number of rows."""
    monkeypatch.setattr(prepack, "_gives_the_same_bits", lambda *_: False)
    torch.manual_seed(0)
    layer = nn.Linear(320, columns)
    packed = Packed([layer.weight], always=True).checked()
    if not can_multiply(False):
        pytest.skip("not on this processor")
    assert packed.alone
    with torch.inference_mode():
        x = torch.randn(150, 320)
        found = packed.multiply(x, layer.bias)
        torch.testing.assert_close(found, layer(x))
        alone = torch.cat([packed.multiply(row[None], layer.bias) for row in x])
        assert torch.equal(found, alone)


def test_what_is_not_packed(monkeypatch):
    class Own(nn.Linear):
        """Somebody's own layer."""

    for layer in (Own(48, 80), nn.Linear(48, 80, dtype=torch.float64)):
        assert not prepack_linears(layer).units
    monkeypatch.setattr(prepack, "FREE_SHARE", 0.0)
    assert not prepack_linears(nn.Linear(48, 80)).units, "no memory"
    monkeypatch.setattr(prepack, "FREE_SHARE", 0.9)
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER[::-1])
    assert not prepack_linears(nn.Linear(48, 80)).units, "never faster"
    monkeypatch.undo()
    assert not prepack_linears(nn.Linear(48, 80)).units, "small"


def test_text_is_that_of_plain_layers():
    model = gemma3().float()
    wanted = plain(model, [1, 5, 4], 40)
    cached = CachedModel(model)
    assert len(cached.packed.units) == 15
    trees = RandomDrafter(wanted, seed=3)
    assert list(decode(cached, trees, [1, 5, 4], max_new=40).tokens) == wanted
