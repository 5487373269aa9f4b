"""Fused calls give the logits of the modules, which are called if kernels do not apply."""

from __future__ import annotations

import copy
import random
import weakref

import pytest
import torch
from architectures import SUPPORTED, config_of
from ouroboros.baselines import Greedy
from tiny import VOCAB, build, llama, mostly_slow, prompt_of, random_tree
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.llama import modeling_llama

from ouroboros import CachedModel, decode, generate
from ouroboros.engine import fused, prepack
from ouroboros.engine.cache import logit_error, tolerance
from ouroboros.engine.exact import Exact, make_exact
from ouroboros.engine.fused import Fused
from ouroboros.engine.prepack import ROWS
from ouroboros.tree import TokenTree

X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
pytestmark = pytest.mark.skipif(not X86, reason="no oneDNN for this processor")
DTYPES = (torch.float32, torch.bfloat16)
LIKE_LLAMA = ("llama", "mistral", "qwen2", "qwen3")
WIDE = {"hidden_size": 64, "intermediate_size": 160, "head_dim": 32}  # one kernel serves it
FASTER = [9.0] * len(ROWS), [1.0] * len(ROWS)


@pytest.fixture(autouse=True)
def packed_is_faster(monkeypatch):
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER)


def prepacked(model, **how) -> CachedModel:
    made = CachedModel(model, **how)
    made.prepack()
    return made


def both(name: str, dtype=torch.float32, **other) -> tuple[CachedModel, CachedModel]:
    """Two wrappers of equal models: by kernels and by modules."""
    models = [build(config_of(name, SUPPORTED[name] | other), dtype=dtype) for _ in range(2)]
    ours, modules = prepacked(models[0]), CachedModel(models[1], engine="eager")
    assert isinstance(ours.engine, Fused) and ours.exact
    return ours, modules


def jointly(model: CachedModel, calls) -> list[torch.Tensor]:
    sequences = [model.new_sequence() for _ in calls]
    return model.score_together([(s, *call) for s, call in zip(sequences, calls, strict=True)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_kernels_give_the_logits_of_the_modules(name, dtype):
    ours, modules = both(name, dtype)
    draw, calls = random.Random(name), []
    for length in (1, 3, 30):
        prompt = prompt_of(length, length)
        tree = random_tree(draw, prompt[-1], 9)
        found, expected = (
            model.score(model.new_sequence(), prompt, tree) for model in (ours, modules)
        )
        assert logit_error(found.double(), expected.double()) < tolerance(dtype)
        calls.append((prompt, tree))
    for found, expected in zip(jointly(ours, calls), jointly(modules, calls), strict=True):
        assert logit_error(found.double(), expected.double()) < tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LIKE_LLAMA)
def test_one_kernel_for_all_layers_gives_the_bits_of_the_steps(name, dtype, monkeypatch):
    ours, _ = both(name, dtype, **WIDE)
    if not ours.engine.layers[0].o_proj.packed.address:
        pytest.skip("our kernel does not multiply on this processor")
    draw, calls = random.Random(name), []
    for length, nodes in ((1, 1), (3, 7), (20, 12)):
        text = prompt_of(length, length)
        tree = random_tree(draw, text[-1], nodes)
        calls.append((text, tree.with_logits_at(range(nodes // 2, nodes))))
    found = [ours.score(ours.new_sequence(), *call).clone() for call in calls]
    assert ours.engine.few.table is not None
    found += [part.clone() for part in jointly(ours, calls)]
    monkeypatch.setattr(fused, "MOST", 0)
    ours.empty()
    stepwise = [ours.score(ours.new_sequence(), *call).clone() for call in calls]
    for one, other in zip(found, stepwise * 2, strict=True):
        assert torch.equal(one, other)


def test_one_kernel_reads_a_weight_replaced_within_a_sequence(monkeypatch):
    found, text = [], [3, 4]
    for most in (fused.MOST, 0):
        monkeypatch.setattr(fused, "MOST", most)
        ours, _ = both("llama", **WIDE)
        sequence = ours.new_sequence()
        before = ours.score(sequence, text, TokenTree.chain(4, ())).clone()
        CHANGES["a replaced norm"](ours.model)
        found.append(ours.score(sequence, [*text, 5], TokenTree.chain(5, ())).clone())
    assert torch.equal(*found) and not torch.equal(found[0], before)


@pytest.mark.parametrize("name", mostly_slow(LIKE_LLAMA, quick=["qwen3"]))
def test_tokens_are_those_of_the_modules_in_float32(name):
    ours, modules = both(name)
    for seed in range(3):
        prompt = prompt_of(11, seed)
        texts = [decode(m, Greedy(), prompt, max_new=40).tokens for m in (ours, modules)]
        assert texts[0] == texts[1]


def test_long_prompts_and_grown_caches_are_served():
    ours, modules = both("llama", max_position_embeddings=2000)
    prompt = prompt_of(1200)
    texts = [decode(m, Greedy(), prompt, max_new=8).tokens for m in (ours, modules)]
    assert texts[0] == texts[1]


def test_calls_by_kernels_ignore_torchs_default_device_and_autocast():
    ours, modules = both("llama", max_position_embeddings=512)
    prompt, rule = prompt_of(200), {"max_new": 8}
    expected = decode(modules, Greedy(), prompt, **rule).tokens
    with torch.device("meta"):  # as by torch.set_default_device
        assert decode(ours, Greedy(), prompt, **rule).tokens == expected
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert decode(ours, Greedy(), prompt, **rule).tokens == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_torchs_default_dtype_does_not_matter(dtype):
    shape = SUPPORTED["llama"] | {"max_position_embeddings": 512}
    model, prompt = build(config_of("llama", shape), dtype=torch.float32), prompt_of(200)
    tree, before = TokenTree.chain(prompt[-1], [4, 5]), torch.get_default_dtype()
    modules = CachedModel(model, engine="eager")
    expected = modules.score(modules.new_sequence(), prompt, tree).clone()
    prepack._gives_the_same_bits.cache_clear()
    try:
        torch.set_default_dtype(dtype)
        ours = prepacked(model)
        found = ours.score(ours.new_sequence(), prompt, tree)
    finally:
        torch.set_default_dtype(before)
    assert isinstance(ours.engine, Fused)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def negate_the_logits(model) -> None:
    plain = model.forward

    def forward(*args, **kwargs):
        found = plain(*args, **kwargs)
        found.logits = -found.logits
        return found

    model.forward = forward


def negate_a_norm(model) -> None:
    kind = type(model.model.norm)
    model.model.norm.__class__ = type("Negated", (kind,), {"forward": lambda *a: -kind.forward(*a)})


def replace_weight(owner: nn.Module, factor: float) -> None:
    owner.weight = nn.Parameter(factor * owner.weight.detach())


CHANGES = {
    "a replaced weight": lambda m: replace_weight(m.lm_head, -1),
    "a weight": lambda m: m.model.layers[0].mlp.up_proj.weight.mul_(-2),
    "a weight of a group": lambda m: m.model.layers[1].self_attn.k_proj.weight.mul_(-2),
    "a replaced norm": lambda m: replace_weight(m.model.layers[1].input_layernorm, -2),
    "a norm": lambda m: m.model.norm.weight.mul_(-2),
    "a norm's class": negate_a_norm,
    "a parametrised norm": lambda m: nn.utils.parametrize.register_parametrization(
        m.model.norm, "weight", nn.Hardtanh(-1, -0.5)
    ),
    "an epsilon": lambda m: setattr(
        m.model.layers[1].post_attention_layernorm, "variance_epsilon", 4000.0
    ),
    "a bias": lambda m: m.model.layers[1].self_attn.v_proj.register_parameter(
        "bias", nn.Parameter(torch.linspace(-3, 3, 64))
    ),
    "an adapter": lambda m: m.model.layers[1].self_attn.add_module(
        "q_proj", nn.Sequential(m.model.layers[1].self_attn.q_proj, nn.Hardtanh(-1e-3, 1e-3))
    ),
    "a hook": lambda m: m.model.layers[0].mlp.register_forward_hook(lambda _, __, out: -3 * out),
    "the input of keys": lambda m: m.model.layers[1].self_attn.k_proj.register_forward_pre_hook(
        lambda _, inputs: (inputs[0].mul_(-2), None)[1]
    ),
    "the model's forward": negate_the_logits,
    "the scores' scale": lambda m: setattr(m.model.layers[1].self_attn, "scaling", 2.0),
    "the angles' scale": lambda m: setattr(m.model.rotary_emb, "attention_scaling", 2.0),
    "the angles": lambda m: m.model.rotary_emb.inv_freq.mul_(0.2),
    "the angles through data": lambda m: m.model.rotary_emb.inv_freq.data.mul_(0.2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_followed(change):
    """Although a prefix of the prompt is cached, by both engines and by the modules themselves."""
    ours, modules = both("llama", **WIDE)
    plain, prompt, tree = copy.deepcopy(modules.model), prompt_of(9), TokenTree.chain(5, (1, 2, 3))
    prompt[-1] = 5
    before = [m.score(m.new_sequence(), prompt, tree).clone() for m in (ours, modules)]
    with torch.no_grad():
        for model in (ours.model, modules.model, plain):
            CHANGES[change](model)
    ids = torch.tensor([[*prompt, 1, 2, 3]])
    with torch.no_grad():
        expected, found = (model(ids).logits[0, -4:] for model in (plain, ours.model))
    assert logit_error(found, expected) < tolerance(torch.float32)
    for model in (ours, modules):
        found = model.score(model.new_sequence(), prompt, tree)
        assert logit_error(found, expected) < tolerance(torch.float32)
    assert logit_error(expected, before[0]) > 100 * tolerance(torch.float32)


def test_a_replaced_forward_of_a_class_is_followed(monkeypatch):
    ours, _ = both("llama", **WIDE)
    prompt, kind = prompt_of(9), type(ours.model.model.layers[0].mlp)
    before, plain = decode(ours, Greedy(), prompt, max_new=8).tokens, kind.forward
    monkeypatch.setattr(kind, "forward", lambda own, x: -2 * plain(own, x))
    ids = torch.tensor([prompt])
    expected = copy.deepcopy(ours.model).generate(ids, max_new_tokens=8, do_sample=False)[0]
    assert decode(ours, Greedy(), prompt, max_new=8).tokens == expected.tolist() != before
    assert not isinstance(prepacked(copy.deepcopy(ours.model)).engine, Fused)


@pytest.mark.parametrize("patched", [(nn.Linear, "forward"), (nn.functional, "linear")], ids=str)
def test_patched_linear_layers_are_followed(monkeypatch, patched):
    ours, modules = both("llama", **WIDE)
    packed, plain = prepacked(modules.model, engine="eager"), getattr(*patched)
    demanded = CachedModel(copy.deepcopy(ours.model), exact=True)
    before = decode(ours, Greedy(), prompt_of(9), max_new=8).tokens
    monkeypatch.setattr(*patched, lambda *args: -2 * plain(*args))
    ids = torch.tensor([prompt_of(9)])
    expected = copy.deepcopy(ours.model).generate(ids, max_new_tokens=8, do_sample=False)[0]
    for model in (ours, packed):
        assert (
            decode(model, Greedy(), prompt_of(9), max_new=8).tokens == expected.tolist() != before
        )
    assert not prepacked(copy.deepcopy(ours.model)).packed.layers
    with pytest.raises(ValueError, match="call prepack"):
        decode(demanded, Greedy(), prompt_of(9), max_new=8)
    with pytest.raises(ValueError, match=r"nn\.Linear was patched"):
        make_exact(ours.model, ours._info)


@pytest.mark.parametrize("name", ["silu", "apply_rotary_pos_emb"])
def test_replaced_functions_are_followed(monkeypatch, name):
    ours, _ = both("llama", **WIDE)
    prompt = prompt_of(9)
    before = decode(ours, Greedy(), prompt, max_new=8).tokens
    if name == "silu":
        monkeypatch.setattr(nn.functional, name, lambda x, *args, **kwargs: -x)
    else:
        monkeypatch.setattr(modeling_llama, name, lambda q, k, *angles: (k.mean(1, True) + q, k))
    expected = copy.deepcopy(ours.model).generate(torch.tensor([prompt]), max_new_tokens=8)
    assert decode(ours, Greedy(), prompt, max_new=8).tokens == expected[0].tolist() != before


class Negated(TorchFunctionMode):
    """Changes each linear layer's result."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return -2 * out if function is nn.functional.linear else out


def test_a_torch_mode_sees_the_operators_of_each_call():
    ours, modules = both("llama", **WIDE)
    packed = prepacked(modules.model, engine="eager")
    prompt, plain = prompt_of(9), copy.deepcopy(ours.model)
    before = decode(ours, Greedy(), prompt, max_new=8).tokens
    counted = []
    for model in (ours, packed, CachedModel(plain)):
        model.empty()
        with FlopCounterMode(display=False) as counter:
            assert decode(model, Greedy(), prompt, max_new=8).tokens == before
            with pytest.raises(ValueError, match="a torch mode such as FlopCounterMode is active"):
                make_exact(plain, model._info)
        counted.append(counter.get_total_flops())
        with Negated():
            expected = copy.deepcopy(plain).generate(torch.tensor([prompt]), max_new_tokens=8)
            assert decode(model, Greedy(), prompt, max_new=8).tokens == expected[0].tolist()
        assert expected[0].tolist() != before
    with FlopCounterMode(display=False) as counter:
        plain.generate(torch.tensor([prompt]), max_new_tokens=8)
    assert counted == [counter.get_total_flops()] * 3, "of these calls alone"
    with torch.device("cpu"):
        assert decode(ours, Greedy(), prompt, max_new=8).tokens == before
    assert ours.engine.fresh


@pytest.mark.parametrize("change", ["an epsilon", "the angles", "a norm's class"])
def test_exact_generation_follows_a_change(change):
    model = build(config_of("llama", SUPPORTED["llama"]), dtype=torch.float32)
    ids = torch.tensor([prompt_of(9)])
    options = {"decoder": "lookahead", "exact": True, "max_new_tokens": 12}
    before = generate(model, ids, **options).tolist()
    CHANGES[change](model)
    expected = copy.deepcopy(model).generate(ids, max_new_tokens=12, do_sample=False).tolist()
    assert generate(model, ids, **options).tolist() == expected != before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda model: model.resize_token_embeddings(VOCAB + 9), f"ids={VOCAB + 9}"),
        (lambda model: model.double(), "float64"),
    ],
)
def test_a_model_of_another_shape_must_be_wrapped_again(change, named):
    for model in both("llama"):
        decode(model, Greedy(), prompt_of(5), max_new=3)
        change(model.model)
        with pytest.raises(ValueError, match=f"{named}.*CachedModel"):
            decode(model, Greedy(), prompt_of(5), max_new=3)


@pytest.mark.parametrize(
    "change", [CHANGES["a weight"], lambda m: setattr(m, "lm_head", nn.Linear(16, VOCAB, False))]
)
@torch.no_grad()
def test_changed_weights_are_not_called_exact_until_they_are_packed_again(change):
    ours, _ = both("llama")
    change(ours.model)
    assert not ours.exact
    ours.prepack()
    assert ours.exact and isinstance(ours.engine, Fused)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_modules_of_joined_layers_compute_their_product_once(name, monkeypatch):
    """transformers' own generation is not slowed down by calls by kernels."""
    made = prepacked(build(config_of(name, SUPPORTED[name]), dtype=torch.float32))
    plain, ids = copy.deepcopy(made.model), torch.tensor([prompt_of(9)])
    multiply, products = prepack.Packed.multiply, []
    monkeypatch.setattr(
        prepack.Packed, "multiply", lambda *args: (products.append(1), multiply(*args))[1]
    )
    for mode in (torch.no_grad, torch.inference_mode):
        products.clear()
        with mode():
            torch.testing.assert_close(made.model(ids).logits, plain(ids).logits)
        assert len(products) == 4 * len(made.model.model.layers) + 1  # qkv, o, gate and up, down


def test_a_joined_weight_takes_the_place_of_its_layers():
    blocks = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128, "vocab_size": 64}
    made = prepacked(llama(dtype=torch.float32, **blocks))  # whole blocks, which need no padding
    packed = [
        layer.packed.weight for layer in made.packed.layers if hasattr(layer.packed, "weight")
    ]
    assert sum(weight.numel() for weight in packed) == sum(
        layer.weight.numel() for layer in made.packed.layers
    )
    assert prepacked(made.model).packed is made.packed
    made.model.model.layers[0].register_forward_hook(lambda *_: None)
    assert isinstance(CachedModel(made.model, exact=True).engine, Exact)


@pytest.mark.parametrize(
    ("name", "other", "dtype"),
    [
        ("gemma", {}, torch.float32),
        ("granite", {}, torch.float32),
        ("llama", {"hidden_act": "gelu"}, torch.float32),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, torch.float32),
        ("llama", {}, torch.float64),
    ],
)
def test_other_models_are_called_by_their_modules(name, other, dtype):
    model = build(config_of(name, SUPPORTED[name] | other), dtype=dtype)
    made = prepacked(model)
    assert not isinstance(made.engine, Fused) and not made.exact
    decode(made, Greedy(), prompt_of(5), max_new=3)


def test_a_model_with_a_weight_that_cannot_be_packed_is_called_by_its_modules():
    hub = llama(dtype=torch.float32)
    weight = hub.model.layers[0].self_attn.q_proj.weight
    hub.model.layers[0].self_attn.q_proj.weight = nn.Parameter(weight.detach().T.contiguous().T)
    assert not isinstance(prepacked(hub).engine, Fused)


def test_a_model_that_leaves_out_layers_is_called_by_its_modules():
    """Kernels would write keys of all layers, beyond the cache's end."""
    model = llama(dtype=torch.float32, num_hidden_layers=3)
    model.config.num_hidden_layers = 1
    assert not fused._is_llama_like(model, CachedModel(model)._info)


def test_layers_that_two_models_share_may_be_packed_twice():
    """As by a draft that consists of the target's first layers. The kernel still reads the copies
    whose addresses it has, because a prefix is cached."""
    ours, _ = both("llama", **WIDE)
    draft, prompt = llama(dtype=torch.float32, **WIDE), prompt_of(9)
    before = decode(ours, Greedy(), prompt, max_new=8).tokens
    read = weakref.ref(ours.engine.layers[0].o_proj.packed)
    draft.model.layers = nn.ModuleList(ours.model.model.layers[:1])
    prepacked(draft)
    assert decode(ours, Greedy(), prompt, max_new=8).tokens == before
    assert ours.engine.few.table is None or read() is not None


def test_the_modules_are_called_on_request_and_where_kernels_do_not_serve(monkeypatch):
    hub = llama(dtype=torch.float32)
    assert not prepacked(hub, engine="eager").exact
    hooked = llama(dtype=torch.float32)
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    assert not prepacked(hooked).exact
    assert isinstance(CachedModel(hooked, exact=True).engine, Exact)
    subclass, unlike = (llama(dtype=torch.float32, num_hidden_layers=2) for _ in range(2))
    subclass.__class__ = type("Own", (type(hub),), {"__module__": "mine"})
    unlike.model.layers[-1].self_attn.scaling *= 1.0001
    assert not prepacked(subclass).exact and not prepacked(unlike).exact
    with monkeypatch.context() as everywhere:
        hooks = nn.modules.module._global_forward_hooks
        everywhere.setitem(hooks, 0, lambda *_: None)
        assert not prepacked(llama(dtype=torch.float32)).exact
    monkeypatch.setattr(prepack, "TIMED_BYTES", 0)
    monkeypatch.setattr(prepack, "_time_both", lambda layers: FASTER[::-1])
    monkeypatch.setattr(prepack, "DISPATCH_MS", 0)
    assert not prepacked(llama(dtype=torch.float32)).exact


def test_kernels_that_differ_from_the_modules_are_not_used(monkeypatch):
    plain = fused.Fused.forward
    monkeypatch.setattr(fused.Fused, "forward", lambda *args: plain(*args) * 1.1)
    assert not prepacked(llama(dtype=torch.float32)).exact
