"""Compiled layers compute what plain layers do, with few compilations."""

import random

import pytest
import torch
from pretended_cuda import pretend
from tiny import llama, mostly_slow, random_tree
from torch.testing._internal.two_tensor import TwoTensor

from ouroboros.engine import compiled_layers
from ouroboros.engine.compiled_layers import (
    FUSED,
    RECOMPILING,
    CompiledLayers,
    fuse_projections,
)
from ouroboros.engine.engine_choice import why_different
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import quantise
from ouroboros.engine.triton_products import product


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, backend) -> CachedModel:
    layers = CompiledLayers(model, backend=backend)
    static = CachedModel(model, engine="static")
    static.engine.compiled = layers
    return static


def agree(static: CachedModel, eager: CachedModel, lengths, sizes, **tolerance) -> None:
    """Hold calls of all lengths and sizes against each other, tokens exactly; the model stays as it
    was."""
    before = dict(eager.model.named_modules())
    for length in lengths:
        for nodes in sizes:
            tokens = [1 + i % 11 for i in range(length)]
            tree = random_tree(random.Random(nodes), tokens[-1], nodes)
            found, wanted = (m.score(m.new_sequence(), tokens, tree) for m in (static, eager))
            torch.testing.assert_close(found, wanted, **tolerance)
            assert found.argmax(-1).tolist() == wanted.argmax(-1).tolist()
    assert dict(eager.model.named_modules()) == before


@pytest.mark.slow
def test_a_fourth_model_is_compiled_too_or_the_engine_is_refused(monkeypatch):
    """Dynamo would leave its layers as they are, in silence."""
    made: list = []
    backend = lambda graph, inputs: made.append(graph) or graph.forward  # noqa: E731

    def trial(width: int) -> str | None:
        model = llama(hidden_size=4 * width, head_dim=width)
        eager = CachedModel(model, engine="eager")
        return why_different(compiled(model, backend).engine, eager.engine)

    counts = []
    for width in (2, 4, 6, 8):
        assert trial(width) is None
        counts.append(len(made))
    assert counts == sorted(set(counts)), "each is compiled"
    monkeypatch.setitem(RECOMPILING, "recompile_limit", 1)
    assert "recompile_limit" in trial(10)
    model = compiled(llama(), "eager")
    model.engine.compiled.compiled = []
    assert "not found" in why_different(model.engine, model.engine)


@pytest.mark.parametrize(
    ("lengths", "sizes"), mostly_slow([((3, 9), (5, 1, 2)), ((3,), (5,))], quick=[((3,), (5,))])
)
def test_inductors_code_answers_as_plain_calls_do(lengths, sizes):
    """Its float32 parts (norms, rotations) round otherwise, in float64 too."""
    model, eager = llama(num_hidden_layers=1), CachedModel(llama(), engine="eager")
    static = compiled(model, "inductor")
    agree(static, eager, lengths, sizes, rtol=1e-4, atol=1e-4)


def test_projections_of_one_input_lie_behind_one_another():
    model = llama()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    (layer,) = model.model.layers
    places_of = fuse_projections(layer)
    assert [place.name for place in places_of] == [name for names in FUSED for name in names]
    assert len({id(place.other.weight) for place in places_of}) == 2
    for owner, name, plain, part in places_of:
        assert getattr(owner, name) is plain
        start = part.weight.data_ptr() + part.start * part.weight.stride(0) * 8
        assert plain.weight.data_ptr() == start  # held once
        hidden = torch.randn(3, plain.in_features, dtype=torch.float64)
        torch.testing.assert_close(part(hidden), plain(hidden), rtol=1e-12, atol=1e-12)
    places = {name: weight.data_ptr() for name, weight in model.state_dict().items()}
    again = fuse_projections(layer)  # as by a second wrapper, which must not move them
    assert torch.equal(again[1].other.weight, places_of[1].other.weight)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]) and weight.data_ptr() == places[name]


def test_projections_of_another_quantisation_are_left_alone():
    (layer,) = llama().model.layers
    for linear in (layer.self_attn.q_proj, layer.mlp.up_proj):
        weight = TwoTensor(linear.weight.data, linear.weight.data)
        linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert fuse_projections(layer) == []


@pytest.mark.parametrize("kind", mostly_slow(["int8", "tuned"], quick=["int8"]))
def test_products_are_fused_and_a_lone_row_has_code_of_its_own(kind, monkeypatch):
    """Of int8 weights always, of others where the engine is asked to; one for each input."""
    made = []

    def counted(x, *operands):
        made.append(len(operands[0]))
        return product(x, *operands)

    monkeypatch.setattr(compiled_layers, "product", counted)
    model = quantise(llama(), "int8") if kind == "int8" else llama()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    layers = CompiledLayers(model, backend="eager", products=kind == "tuned")
    static, eager = CachedModel(model, engine="static"), CachedModel(model, engine="eager")
    static.engine.compiled = layers
    shared = {id(swap.other.weight) for swap in layers.swaps if hasattr(swap.other, "start")}
    assert len(shared) == 4  # q, k and v; o; gate and up; down
    for tuned, sizes, by_kernel in ((None, (1,), False), (False, (1,), True), (True, (4,), True)):
        layers.tuned = tuned
        made.clear()
        torch._dynamo.reset()
        agree(static, eager, (1,), sizes)
        assert bool(made) is by_kernel
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name])


@pytest.mark.parametrize("tuned", mostly_slow([True, False], quick=[False]))
def test_one_node_goes_the_faster_way(monkeypatch, tuned):
    pretend(monkeypatch)
    model = llama()
    static = compiled(model, "eager")
    static.engine.graphs = True
    took = iter((1.0, 2.0) if tuned else (2.0, 1.0))
    monkeypatch.setattr("ouroboros.engine.static.replay_ms", lambda graph: next(took))
    agree(static, CachedModel(model, engine="eager"), (3,), (2, 1))
    assert static.engine.compiled.tuned is tuned
