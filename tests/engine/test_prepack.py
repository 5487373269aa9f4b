"""Packed linear layers compute what plain ones do, even after weights change."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import torch
from tiny import RandomDrafter, llama, plain, session
from torch import nn

from ouroboros.decode import decode
from ouroboros.engine import prepack
from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.engine.model import CachedModel
from ouroboros.engine.prepack import ROWS, Packed, PackedLinear, prepack_linears
from ouroboros.tree import TokenTree

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


def pair(*, bias: bool = True, dtype: torch.dtype = torch.float32, inside: int = 48):
    """A packed and a plain layer of the same weights."""
    torch.manual_seed(0)
    plain = nn.Linear(inside, 80, bias=bias, dtype=dtype)
    own = copy.deepcopy(plain)
    prepack_linears(own)
    assert type(own) is PackedLinear
    return own, plain


@torch.no_grad()
def same(own: nn.Module, plain: nn.Module) -> bool:
    weight = next(plain.parameters())
    within = {"rtol": 1e-4, "atol": 1e-5} if weight.dtype != torch.bfloat16 else {"atol": 2e-2}
    inputs = [torch.randn(1, n, weight.shape[1], dtype=weight.dtype) for n in (0, 1, 2, 3, 24, 70)]
    return all(torch.allclose(own(x), plain(x), **within) for x in inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_computes_what_a_plain_one_does(bias, dtype):
    own, plain = pair(bias=bias, dtype=dtype)
    assert same(own, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_row_count_goes_the_faster_way(monkeypatch, dtype):
    """As timed: the faster one, and packed products where there is little between them."""
    times = [1.0, 2.0, 1.0, 1.0], [2.0, 1.0, 1.05, 2.0]
    monkeypatch.setattr(prepack, "_time_both", lambda layers: times)
    own, other = (nn.Linear(48, 80, bias=False, dtype=dtype) for _ in range(2))
    plain = copy.deepcopy(own)
    assert prepack_linears(own).facts["used"] == [2, 4]
    prepack_linears(other)
    own.packed.weight, own.packed.address = other.packed.weight, other.packed.address
    with torch.inference_mode():
        for rows in (1, 2, 3, 4, 15, 16, 40):
            x = torch.randn(rows, 48).to(dtype)
            taken = other if 2 <= rows < 16 else plain
            assert torch.allclose(own(x), taken(x), rtol=1e-2, atol=1e-3), rows
            assert not torch.allclose(own(x), (plain if taken is other else other)(x))


def test_what_is_never_faster_is_not_packed(monkeypatch):
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER[::-1])
    own, plain = nn.Linear(48, 80), nn.Linear(48, 80)
    plain.load_state_dict(own.state_dict())
    assert not prepack_linears(own).facts and same(own, plain)


def test_both_ways_are_timed(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(prepack, "SMALLEST", {})
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    facts = prepack_linears(model).facts
    assert not facts or (facts["layers"], facts["rows"]) == (3, ROWS)
    assert not facts or all(ms > 0 for ms in (*facts["plain_ms"], *facts["packed_ms"]))


@pytest.mark.parametrize("width", [384, 2048])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(dtype, width):
    own = nn.Linear(width, 80, dtype=dtype)
    prepack_linears(own, every=True)
    with torch.inference_mode():
        x = torch.randn(1, 64, width, dtype=dtype)
        every = own(x)
        for rows in (1, 2, 3, 4, 16, 48):
            for start in (0, 64 - rows):
                part = own(x[:, start : start + rows])
                assert torch.equal(part, every[:, start : start + rows]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "columns"), [(64, 80), (320, 13), (1024, 192), (1600, 64)])
def test_our_kernel_gives_the_bits_of_onednn(width, columns, dtype):
    """So large calls can use oneDNN, and small ones the kernel."""
    torch.manual_seed(0)
    layer = nn.Linear(width, columns, dtype=dtype)
    packed = Packed(layer.weight, always=True).checked()
    if not packed.address or packed.alone:
        pytest.skip("not on this processor")
    with torch.inference_mode():
        x = torch.randn(2, 40, width).to(dtype)
        for bias in (None, layer.bias):
            expected = packed.multiply_by_onednn(x, bias)
            for rows in (1, 2, 5, 8, 40):
                part = packed.multiply(x[:, :rows], bias)
                assert torch.equal(part, expected[:, :rows]), rows


@pytest.mark.parametrize("columns", [80, 13])
def test_our_kernel_computes_all_rows_alone_where_onednn_adds_up_otherwise(columns, monkeypatch):
    """As with torch 2.11: then each row has the bits that it has alone, in any number of rows."""
    monkeypatch.setattr(prepack, "_gives_the_same_bits", lambda *_: False)
    torch.manual_seed(0)
    layer = nn.Linear(320, columns)
    packed = Packed(layer.weight, always=True).checked()
    if not can_multiply(False):
        pytest.skip("not on this processor")
    assert packed.alone
    with torch.inference_mode():
        x = torch.randn(150, 320)
        found = packed.multiply(x, layer.bias)
        torch.testing.assert_close(found, layer(x))
        alone = torch.cat([packed.multiply(row[None], layer.bias) for row in x])
        assert torch.equal(found, alone)


@torch.no_grad()
def test_what_is_done_to_weights_is_seen():
    own, plain = pair()
    own.weight.mul_(2)
    plain.weight.mul_(2)
    assert same(own, plain), "written to"
    prepack_linears(own)
    assert own.packed.of is not None and same(own, plain), "packed anew"
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
    own, plain = pair(inside=80)
    own.weight.data = plain.weight.data = own.weight.data.t()
    assert same(own, plain), "turned"


def merge(weight: torch.Tensor) -> None:
    """As adapters are merged: torch counts no such write."""
    a, b = torch.randn(len(weight), 2), torch.randn(2, weight.shape[1])
    weight.data += (0.1 * a @ b).to(weight.dtype)


FILLS = [lambda weight: weight.data[3].fill_(2), lambda weight: weight.data[:, 5].fill_(2)]


@pytest.mark.parametrize("change", [merge, *FILLS], ids=["merged", "row", "column"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_write_through_data_is_noticed(monkeypatch, dtype, change, caplog):
    monkeypatch.setattr(prepack.log, "disabled", False)  # as configured logging may leave it
    model = llama(dtype=dtype)
    cached = session(model)
    cached.prepack()
    assert cached.packed.facts["layers"] == 8
    tree = TokenTree.chain(5, [1, 2])
    before = cached.score([3, 4, 5], tree).clone()
    change(model.model.layers[0].mlp.gate_proj.weight)
    cached.on.empty()
    with caplog.at_level(logging.WARNING):
        if change is not merge:  # some of every row and column: `generate` looks at these
            cached.packed.check(closely=True)
        after = session(copy.deepcopy(model)).score([3, 4, 5], tree)
        found = cached.score([3, 4, 5], tree)
    torch.testing.assert_close(found, after, rtol=2e-2, atol=2e-2)
    assert not torch.allclose(before, after, atol=0.05)
    assert "call prepack()" in caplog.text
    fresh = session(copy.deepcopy(model))
    for packed in (cached, fresh):  # plain bfloat16 products may round differently
        packed.prepack()
        packed.on.empty()
    logits = [packed.score([3, 4, 5], tree).clone() for packed in (cached, fresh)]
    torch.testing.assert_close(*logits, rtol=2e-2, atol=2e-2)
    assert model.lm_head.packed.of is not None


@torch.no_grad()
def test_autocast_inference_tensors_and_other_types_go_the_plain_way():
    own, plain = pair()
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.randn(9, 48)
        assert own(x).dtype == plain(x).dtype == torch.bfloat16
    with torch.inference_mode():
        assert not prepack_linears(nn.Linear(48, 80)).facts
    with pytest.raises(RuntimeError, match="same dtype"):
        own(torch.randn(9, 48).double())


def test_gradients_flow():
    layers = pair()
    for layer in layers:
        layer(torch.ones(9, 48)).square().sum().backward()
    assert torch.allclose(layers[0].weight.grad, layers[1].weight.grad, rtol=1e-4)


def test_copies_begin_without():
    own, plain = pair()
    other = copy.deepcopy(own)
    assert same(other, plain) and other.packed.of is None
    assert same(copy.deepcopy(own).double(), plain.double())
    file = io.BytesIO()
    torch.save(own, file)
    file.seek(0)
    assert same(torch.load(file, weights_only=False), plain.float())


def test_what_is_not_packed(monkeypatch):
    class Own(nn.Linear):
        """Somebody's own layer."""

    assert not prepack_linears(Own(48, 80)).facts
    assert not prepack_linears(nn.Linear(48, 80, dtype=torch.float64)).facts
    monkeypatch.setattr(prepack, "FREE_SHARE", 0.0)
    assert not prepack_linears(nn.Linear(48, 80)).facts, "no memory"
    monkeypatch.undo()
    assert not prepack_linears(nn.Linear(48, 80)).facts, "small"


def test_a_model_whose_packing_fails_remains_usable(monkeypatch):
    def fail(*_) -> None:
        raise RuntimeError("no memory")

    own, plain = nn.Linear(48, 80), nn.Linear(48, 80)
    plain.load_state_dict(own.state_dict())
    monkeypatch.setattr(Packed, "_copy", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        prepack_linears(own)
    assert same(own, plain)


def test_text_is_that_of_plain_layers():
    model = llama(dtype=torch.float32)
    wanted = plain(model, [1, 5, 4], 40)
    cached = CachedModel(model)
    assert not any(isinstance(layer, PackedLinear) for layer in model.modules()), "its owner's"
    cached.prepack()
    assert cached.packed.facts["layers"] == 8
    trees = RandomDrafter(wanted, seed=3)
    assert list(decode(cached, trees, [1, 5, 4], max_new=40).tokens) == wanted
