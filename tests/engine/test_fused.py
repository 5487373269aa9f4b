"""Fused calls give the logits of the modules, which are called if kernels do not apply."""

import copy
import gc
import random
import weakref

import pytest
import torch
from architectures import SUPPORTED, config_of
from ouroboros.baselines import Greedy
from tiny import build, llama, mostly_slow, prompt_of, random_tree
from torch import nn

from ouroboros import CachedModel, TokenTree, decode
from ouroboros.engine import fused, prepack
from ouroboros.engine.cache import logit_error, tolerance
from ouroboros.engine.fused import Fused
from ouroboros.engine.prepack import ROWS

DTYPES = (torch.float32, torch.bfloat16)
LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
WIDE = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 32}  # one kernel serves it


def both(name: str, dtype=torch.float32, **other) -> tuple[CachedModel, CachedModel]:
    """Two wrappers of equal models: by kernels and by modules."""
    models = [build(config_of(name, SUPPORTED[name] | other), dtype=dtype) for _ in range(2)]
    ours, modules = CachedModel(models[0]), CachedModel(models[1], engine="eager")
    assert isinstance(ours.engine, Fused) and ours.exact
    return ours, modules


def scored(model: CachedModel, calls) -> list[torch.Tensor]:
    """The logits of each call alone, then those of all in one call."""
    model.empty()
    alone = [model.score(model.new_sequence(), *call).clone() for call in calls]
    sequences = [model.new_sequence() for _ in calls]
    joint = model.score_all([(s, *call) for s, call in zip(sequences, calls, strict=True)])
    return alone + [part.clone() for part in joint]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_kernels_give_the_logits_of_the_modules_and_the_same_bits_in_joint_calls(name, dtype):
    ours, modules = both(name, dtype, **WIDE, max_position_embeddings=160)
    draw, calls = random.Random(name), []
    for length, nodes in ((1, 1), (3, 7), (20, 12), (120, 30)):  # the last: two kernel calls
        text = prompt_of(length, length)
        tree = random_tree(draw, text[-1], nodes)
        calls.append((text, tree.with_logits_at(range(nodes // 2, nodes))))
    found = scored(ours, calls)
    for own, expected in zip(found, scored(modules, calls), strict=True):
        assert logit_error(own.double(), expected.double()) < tolerance(dtype)
    for own, other in zip(found[: len(calls)], found[len(calls) :], strict=True):
        assert torch.equal(own, other)


def test_an_engine_is_freed_with_its_model():
    (ours, _), text = both("llama"), prompt_of(3)
    ours.score(ours.new_sequence(), text, TokenTree.chain(text[-1], ()))
    gone = weakref.ref(ours.engine)
    gc.collect()
    gc.disable()
    try:
        del ours
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", mostly_slow(LIKE_LLAMA, quick=["qwen3"]))
def test_tokens_are_those_of_the_modules_in_float32(name):
    """After long prompts too, for which caches grow."""
    ours, modules = both(name, max_position_embeddings=2000)
    for length in (11, 30, 1200):
        prompt = prompt_of(length)
        texts = [decode(m, Greedy(), prompt, max_new=40).tokens for m in (ours, modules)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("default", ["meta", torch.float64, torch.bfloat16], ids=str)
def test_torchs_default_device_and_dtype_do_not_matter(default):
    shape = SUPPORTED["llama"] | {"max_position_embeddings": 512}
    model, prompt = build(config_of("llama", shape), dtype=torch.float32), prompt_of(200)
    modules, before = CachedModel(copy.deepcopy(model), engine="eager"), torch.get_default_dtype()
    expected = decode(modules, Greedy(), prompt, max_new=8).tokens
    try:
        if default == "meta":
            ours = CachedModel(model)
            torch.set_default_device(default)
        else:
            torch.set_default_dtype(default)
            ours = CachedModel(model)
        assert decode(ours, Greedy(), prompt, max_new=8).tokens == expected
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)
    assert isinstance(ours.engine, Fused)


def with_hook(model):
    model.model.layers[0].register_forward_hook(lambda *_: None)


def with_own_class(model):
    model.__class__ = type("Own", (type(model),), {"__module__": "mine"})


def with_layers_left_out(model):
    """Kernels would write keys of all layers, beyond the cache's end."""
    model.config.num_hidden_layers = 1


UNLIKE = [
    ("gemma", {}, None),
    ("granite", {}, None),
    ("llama", {"hidden_act": "gelu"}, None),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, None),
    ("llama", {}, nn.Module.double),
    ("llama", {}, nn.Module.half),
    ("llama", {}, with_hook),
    ("llama", {}, with_own_class),
    ("llama", {}, with_layers_left_out),
]


@pytest.mark.parametrize(("name", "other", "change"), UNLIKE)
def test_other_models_are_called_by_their_modules(name, other, change):
    model = build(config_of(name, SUPPORTED[name] | other), dtype=torch.float32)
    if change:
        change(model)
    made = CachedModel(model)
    assert not isinstance(made.engine, Fused) and not made.exact
    served, reason = made.dtype in DTYPES, made.describe_engine()["fallback"]
    assert reason and (served or str(made.dtype) in reason)
    decode(made, Greedy(), prompt_of(5), max_new=3)


def slower(monkeypatch):
    monkeypatch.setattr(prepack, "TIMED_BYTES", 0)
    times = [1.0] * len(ROWS), [9.0] * len(ROWS)
    monkeypatch.setattr(prepack, "_time_both", lambda layers: times)
    monkeypatch.setattr(prepack, "DISPATCH_MS", 0)


def different(monkeypatch):
    plain = fused.Fused.call
    monkeypatch.setattr(fused.Fused, "call", lambda *args: [1.1 * rows for rows in plain(*args)])


def hooked_everywhere(monkeypatch):
    monkeypatch.setitem(nn.modules.module._global_forward_hooks, 0, lambda *_: None)


@pytest.mark.parametrize("where", [slower, different, hooked_everywhere])
def test_kernels_are_not_used_where_they_do_not_serve(monkeypatch, where):
    where(monkeypatch)
    assert not CachedModel(llama(dtype=torch.float32)).exact
