"""int8 models of both back ends: lossless against themselves, audited, bytes counted."""

import copy
import re

import pytest
import torch
from bench_models import byte_tokenizer, tiny_llama
from composing import composed
from ouroboros.baselines import Speculative
from parts import InParts
from tiny import RandomDrafter, gpt2, llama, mostly_slow, plain, prompt_of
from transformers import TorchAoConfig

from ouroboros import CachedModel, Ouroboros, argmax
from ouroboros.audit.audit import Auditor
from ouroboros.audit.reference_forward import recast
from ouroboros.bench.run.pair import PairSpec, load_pair
from ouroboros.core.tree import TokenTree
from ouroboros.costs.timing import footprint
from ouroboros.decode import RootOnly, decode
from ouroboros.engine import quantised
from ouroboros.engine.cache import logit_error, tolerance
from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.engine.fused import Fused
from ouroboros.engine.prepack import MOST, Packed
from ouroboros.engine.quantised import (
    Int8Linear,
    dequantise,
    quantise,
    quantised_by,
    stored_bytes,
)
from ouroboros.models import standin

PROMPTS = [prompt_of(length, seed) for seed, length in enumerate((5, 9, 14, 20))]
MAX_NEW = 30


def int8():
    return "int8"


def torchao():
    package = pytest.importorskip("torchao.quantization")
    return TorchAoConfig(package.Int8WeightOnlyConfig())


@pytest.fixture(scope="module", params=[int8, torchao], ids=lambda make: make.__name__)
def config(request):
    return request.param()


def tiny(config, *, dtype: torch.dtype = torch.float32, scale: float = 1.0):
    """A random two-layer model and the same in int8."""
    model = llama(seed=3, dtype=torch.float32, num_hidden_layers=2, intermediate_size=32)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    model.to(dtype)
    return model, quantise(copy.deepcopy(model), config)


@pytest.mark.parametrize("made", mostly_slow([CachedModel, InParts], quick=[CachedModel]))
def test_decoding_is_lossless_on_an_int8_target(config, made):
    """Equal to plain decoding of the int8 model, which writes another text than the original."""
    original, model = tiny(config)
    truths = [plain(model, prompt, MAX_NEW) for prompt in PROMPTS]
    others = [plain(original, prompt, MAX_NEW) for prompt in PROMPTS]
    assert truths != others
    target, dense, draft = made(model), CachedModel(original), CachedModel(tiny(config)[1])
    for prompt, truth, other in zip(PROMPTS, truths, others, strict=True):
        drafters = [RandomDrafter(truth, seed=seed) for seed in range(5)]
        for drafter in (*drafters, Speculative(draft, gamma=3), Ouroboros(draft)):
            assert decode(target, drafter, prompt, max_new=MAX_NEW).tokens == truth
        assert all(drafter.trees > 3 for drafter in drafters)
        for drafter in (Speculative(draft, gamma=3), Ouroboros(draft)):
            assert decode(dense, drafter, prompt, max_new=MAX_NEW).tokens == other


def test_the_exact_model_is_integers_times_scales(config):
    """Near the int8 model's own forward, and as far from the original as int8 is."""
    original, model = tiny(config)
    exact = recast(model, torch.float64, torch.device("cpu"))
    assert {weight.dtype for weight in exact.parameters()} == {torch.float64}
    ids = torch.tensor([PROMPTS[3]])
    with torch.inference_mode():
        true, ours, other = (m(ids).logits.double() for m in (exact, model, original))
    assert (true - ours).abs().max() < 1e-4
    assert (true - other).abs().max() > 1e-2
    weight = exact.model.layers[0].mlp.up_proj.weight
    steps = weight / weight.abs().amax(1, keepdim=True)
    off = [(steps * largest - (steps * largest).round()).abs().amax(1) for largest in (127, 128)]
    assert torch.minimum(*off).max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_an_int8_run_is_audited(config, dtype):
    """A token changed by hand is a bug; in float32 so is the text of the original weights. (In
    bfloat16 its rounding moves logits as far as int8 does.)"""
    original, model = tiny(config, dtype=dtype, scale=0.3)
    target, draft = CachedModel(model), CachedModel(original)
    auditor, speculative = Auditor(target), Speculative(draft, gamma=4)
    found = {"speculative": set(), "changed": set(), "original": set(), None: set()}
    for prompt in PROMPTS:
        plainly = decode(target, RootOnly(), prompt, max_new=MAX_NEW).new_tokens
        others = {
            "speculative": decode(target, speculative, prompt, max_new=MAX_NEW).new_tokens,
            "changed": [*plainly[:9], (plainly[9] + 1) % 13, *plainly[10:]],
            "original": decode(draft, RootOnly(), prompt, max_new=MAX_NEW).new_tokens,
        }
        findings, controls = auditor.judge(prompt, plainly, others, choose=argmax, controls=True)
        for name in found:
            found[name].add(findings[name].verdict)
        assert all(control.noise > 0 for control in controls)
    whole = dtype == torch.float32
    right = {"identical"} if whole else {"identical", "numeric tie"}
    assert found["speculative"] <= right and found[None] <= right
    assert found["changed"] == {"BUG"} and ("BUG" in found["original"]) >= whole


@pytest.mark.parametrize("depth", [32, 24], ids=["torch's kernel", "a row that it would overrun"])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_product_is_integers_times_scales(rows, depth):
    linear = torch.nn.Linear(depth, 12, dtype=torch.bfloat16)
    x = torch.randn(1, rows, depth, dtype=torch.bfloat16)
    layer = Int8Linear(linear)
    assert layer.weight.abs().max() == 127
    weight = layer.weight.double() * layer.scale.double()[:, None]
    assert (weight - linear.weight).abs().max() <= 0.51 * layer.scale.max()
    right = torch.nn.functional.linear(x.double(), weight, linear.bias.double())
    assert (layer(x) - right).norm() < 1e-2 * right.norm()


@pytest.mark.skipif(not can_multiply(bfloat16=True), reason="no AVX-512")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [640, 300], ids=["whole tiles of AMX", "pairs of inputs"])
def test_the_kernel_multiplies_int8_weights_row_by_row(width, dtype):
    torch.manual_seed(width)
    layers = [Int8Linear(torch.nn.Linear(width, size, dtype=dtype)) for size in (40, 90)]
    packed, bias = Packed(tuple(layers)), torch.cat([own.bias.detach() for own in layers])
    rows = torch.randn(MOST, width, dtype=dtype)
    rows[3, 7] = 500.0  # as massive activations are
    rows[4] = 0.0
    found = packed.multiply(rows)
    for count in (1, 2, 5, 17, 64):
        assert torch.equal(packed.multiply(rows[:count]), found[:count])
    weight = torch.cat([own.weight.double() * own.scale.double()[:, None] for own in layers])
    right = torch.nn.functional.linear(rows.double(), weight, bias.double())
    error = (found - right).norm(dim=1) / right.norm(dim=1)
    assert error.max() < (4e-3 if dtype == torch.bfloat16 else 2e-4)


@pytest.mark.skipif(not can_multiply(bfloat16=True), reason="no AVX-512")
def test_kernels_run_int8_models_and_trimmed_heads():
    wide = {"hidden_size": 64, "intermediate_size": 160, "vocab_size": 150}
    model = quantise(llama(dtype=torch.bfloat16, **wide), "int8")
    ours, modules = CachedModel(model, draft_head=120), CachedModel(model, engine="eager")
    assert isinstance(ours.engine, Fused) and ours.exact
    assert type(ours.model.lm_head) is Int8Linear and ours.head is not None
    prompt = prompt_of(30)
    tree = TokenTree.chain(prompt[-1], (5, 6, 7)).with_logits_at(range(4))
    found, right = (m.score(m.new_sequence(), prompt, tree) for m in (ours, modules))
    kept = right[:, ours.head.ids[:-1]]
    assert logit_error(found.double(), kept.double()) < tolerance(torch.bfloat16)


def test_what_cannot_be_quantised_or_dequantised_is_refused():
    with pytest.raises(ValueError, match="quantization_config='int4': give auto, int8"):
        quantise(llama(), "int4")
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no linear layers"):
        quantise(gpt2(), "int8")
    assert quantised_by(llama()) is None
    with pytest.raises(ValueError, match="cannot be dequantised"):
        dequantise(llama(), torch.float64)


@pytest.mark.parametrize("kernels", [False, True])
def test_auto_is_int8_where_kernels_multiply_it(monkeypatch, kernels):
    monkeypatch.setattr(quantised, "can_multiply", lambda bfloat16: kernels)
    small = llama(dtype=torch.float32)
    assert quantised_by(quantise(small, "auto")) == ("int8" if kernels else None)
    assert quantised_by(quantise(llama(), "auto")) is None, "float64"
    assert quantised_by(quantise(gpt2(), "auto")) is None


def test_a_folder_is_quantised_as_it_is_loaded(config, tmp_path):
    tiny_llama(0).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    options = {"quantization_config": config}
    spec = PairSpec("x", str(tmp_path), str(tmp_path), "float32", "cpu", draft_options=options)
    pair = load_pair(spec, with_draft=True)
    assert quantised_by(pair.target.model) is None
    assert re.fullmatch("int8|torchao Int8WeightOnly", quantised_by(pair.draft.model))
    prompt = pair.target.tokenizer("def add(a, b):")["input_ids"]
    truth = decode(pair.target, RootOnly(), prompt, max_new=20).tokens
    assert decode(pair.target, Speculative(pair.draft, gamma=4), prompt, max_new=20).tokens == truth


def test_a_quantised_standin_computes_its_quantised_core(config):
    """Rows keep their scales when zeros are added, so that the two are one function."""
    core = llama(dtype=torch.float32, num_hidden_layers=1, rms_norm_eps=1e-5)
    shape = copy.deepcopy(core.config)
    shape.update({"hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 2})
    model = standin.embed(core, shape, dtype=torch.float32)
    own, small = quantise(copy.deepcopy(model), config), quantise(copy.deepcopy(core), config)
    ids = torch.tensor([PROMPTS[3]])
    with torch.inference_mode():
        torch.testing.assert_close(own(ids).logits, small(ids).logits, atol=1e-4, rtol=1e-3)


def test_a_profile_counts_the_bytes_that_are_stored(config):
    original, model = tiny(config, dtype=torch.bfloat16)
    layers = sum(w.numel() for w in original.model.layers.parameters() if w.ndim == 2)
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    found, dense = footprint(CachedModel(model)), footprint(CachedModel(original))
    scales = sum(len(w) for w in original.model.layers.parameters() if w.ndim == 2)
    assert layers - 8 * scales <= dense.weight_bytes - found.weight_bytes < layers
    assert stored_bytes(torch.zeros(3, 4, dtype=torch.bfloat16)) == 24


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", ["int8", "int8_torchao"])
def test_the_configs_ask_for_int8(role, name):
    options = composed(f"{role}_weights={name}")["model"][f"{role}_options"]
    config = options["quantization_config"]
    assert config == "int8" or config["_target_"] == "transformers.TorchAoConfig"
