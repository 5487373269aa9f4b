"""Packed linear layers compute what plain ones do, whatever is done to their weights."""

import copy
import io

import pytest
import torch
from tiny import llama, plain
from torch import nn

from ouroboros.decode import decode
from ouroboros.engine import prepack as packed
from ouroboros.engine.model import CachedModel
from ouroboros.engine.prepack import FEWEST_ROWS, PackedLinear, prepack_linears
from ouroboros.testing import RandomTrees

pytestmark = pytest.mark.skipif(not packed._supported(), reason="no oneDNN for this processor")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(packed, "SMALLEST", 1)


def layers(*, bias: bool = True, dtype: torch.dtype = torch.float32):
    """Two plain layers of the same weights."""
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias, dtype=dtype)
    return copy.deepcopy(plain), plain


@torch.no_grad()
def same(own: nn.Module, plain: nn.Module, dtype: torch.dtype = torch.float32) -> bool:
    inputs = [torch.randn(1, rows, 48, dtype=dtype) for rows in (1, 2, 3, 4, 5, 24, 70)]
    return all(torch.allclose(own(x), plain(x), rtol=1e-4, atol=1e-5) for x in inputs)


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_a_plain_one_does(bias):
    own, plain = layers(bias=bias)
    assert prepack_linears(own) == 1 and type(own) is PackedLinear and same(own, plain)
    few = torch.randn(1, FEWEST_ROWS - 1, 48)
    with torch.no_grad():
        assert torch.equal(own(few), plain(few))
    held = own.packed.weight
    assert prepack_linears(own) == 1 and own.packed.weight is held, "once"


def test_many_rows_take_the_packed_weight():
    own, _ = layers(bias=False)
    prepack_linears(own)
    other = nn.Linear(48, 80, bias=False)
    prepack_linears(other)
    own.packed.weight = other.packed.weight
    x = torch.randn(FEWEST_ROWS, 48)
    with torch.inference_mode():
        assert torch.allclose(own(x), other(x)) and not torch.allclose(own(x[:1]), other(x[:1]))


@torch.no_grad()
def test_what_is_done_to_weights_is_seen():
    own, plain = layers()
    prepack_linears(own)
    own.weight.mul_(2)
    plain.weight.mul_(2)
    assert same(own, plain), "written to"
    held = own.packed.weight
    assert prepack_linears(own) == 1 and own.packed.weight is not held and same(own, plain), (
        "packed anew"
    )
    own.weight = plain.weight = nn.Parameter(torch.randn(80, 48))
    assert same(own, plain), "replaced"
    prepack_linears(own)
    for _ in range(20):
        own.weight.data = torch.empty(0)
        own.weight.data = torch.randn(80, 48)  # where the packed one's was, were it given back
        plain.weight.data = own.weight.data
        assert same(own, plain), "laid elsewhere"
    prepack_linears(own)
    own.weight.data = plain.weight.data = own.weight.data[:40]
    plain.bias = own.bias = None
    assert same(own, plain), "cut"
    own, plain = nn.Linear(48, 48), nn.Linear(48, 48)
    prepack_linears(own)
    own.weight.data = plain.weight.data = own.weight.data.t()
    plain.bias = own.bias
    assert same(own, plain), "turned"


@torch.no_grad()
def test_autocast_inference_tensors_and_other_types_go_the_plain_way():
    own, plain = layers()
    prepack_linears(own)
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(9, 48)
        assert own(x).dtype == plain(x).dtype == torch.bfloat16
    with torch.inference_mode():
        assert prepack_linears(nn.Linear(48, 80)) == 0
    with pytest.raises(RuntimeError, match="same dtype"):
        own(torch.randn(9, 48).double())


def test_gradients_flow():
    own, plain = layers()
    prepack_linears(own)
    for layer in (own, plain):
        layer(torch.ones(9, 48)).square().sum().backward()
    assert torch.allclose(own.weight.grad, plain.weight.grad, rtol=1e-4)


def test_copies_begin_without():
    own, plain = layers()
    prepack_linears(own)
    assert same(copy.deepcopy(own), plain) and copy.deepcopy(own).packed.weight is None
    assert same(copy.deepcopy(own).double(), plain.double(), torch.float64)
    file = io.BytesIO()
    torch.save(own, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=False), plain.float())


def test_what_is_not_packed(monkeypatch):
    class Own(nn.Linear):
        """Somebody's own layer."""

    assert prepack_linears(Own(48, 80)) == 0
    assert (
        prepack_linears(layers(dtype=torch.bfloat16)[0])
        == prepack_linears(layers(dtype=torch.float64)[0])
        == 0
    )
    monkeypatch.setattr(packed, "FREE_SHARE", 0.0)
    assert prepack_linears(layers()[0]) == 0, "no memory"
    monkeypatch.undo()
    assert prepack_linears(layers()[0]) == 0, "small"


def test_text_is_that_of_plain_layers():
    model = llama(dtype=torch.float32)
    wanted = plain(model, [1, 5, 4], 40)
    cached = CachedModel(model)
    assert not any(isinstance(layer, PackedLinear) for layer in model.modules()), "its owner's"
    prepack_linears(model)
    assert sum(isinstance(layer, PackedLinear) for layer in model.modules()) > 5
    trees = RandomTrees(wanted, seed=3)
    assert list(decode(cached, trees, [1, 5, 4], max_new=40).tokens) == wanted
