"""A stand-in computes its core's function: logits, argmax, probabilities, in every head layout."""

import pytest
import save_standin as command
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ouroboros.models.standin import SHAPES, embed, shape

VOCAB, HEAD_DIM = 37, 8
SMALL = {"heads": 4, "kv": 2, "hidden": 32, "ffn": 40, "layers": 2, "vocab": VOCAB}
LARGE = {"heads": 16, "kv": 4, "hidden": 112, "ffn": 96, "layers": 5, "vocab": 64}


def config(base: dict, **changes) -> LlamaConfig:
    """A tiny config; the names of `SMALL` shorten, all others are LlamaConfig's own."""
    dims = {key: changes.pop(key, value) for key, value in base.items()}
    return LlamaConfig(
        hidden_size=dims["hidden"],
        intermediate_size=dims["ffn"],
        num_hidden_layers=dims["layers"],
        num_attention_heads=dims["heads"],
        num_key_value_heads=dims["kv"],
        vocab_size=dims["vocab"],
        **({"head_dim": HEAD_DIM} | changes),
    )


def make_core(dtype: torch.dtype = torch.float32, **changes) -> LlamaForCausalLM:
    """A random core with peaked predictions, uneven norm weights and an eps that matters."""
    torch.manual_seed(0)
    core = LlamaForCausalLM(config(SMALL, **({"rms_norm_eps": 1e-2} | changes))).to(dtype).eval()
    with torch.no_grad():
        for name, weight in core.named_parameters():
            weight.normal_(1, 0.3) if "norm" in name else weight.normal_(0, 0.2)
    return core


@torch.no_grad()
def logits(model: LlamaForCausalLM, seed: int = 1) -> torch.Tensor:
    """Logits [300 * 9, vocab] of 300 random contexts of nine tokens."""
    ids = torch.randint(VOCAB, (300, 9), generator=torch.Generator().manual_seed(seed))
    return model(ids).logits.flatten(0, 1)


def assert_same_function(core, model, tolerance: float = 2e-5) -> None:
    mine, theirs = logits(model), logits(core)
    assert (mine - theirs).abs().max() < tolerance * max(1.0, theirs.abs().max().item())
    assert torch.equal(mine.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("heads", [(8, 8), (16, 8), (16, 4), (12, 2), (4, 2), (16, 1)])
@pytest.mark.parametrize("core_heads", [(4, 4), (4, 2), (4, 1), (1, 1)])
def test_every_head_layout_is_exact_or_refused(core_heads, heads):
    core = make_core(heads=core_heads[0], kv=core_heads[1])
    large = config(LARGE, heads=heads[0], kv=heads[1], hidden=96)  # a multiple of all heads
    groups = -(-core_heads[0] // core_heads[1] // (heads[0] // heads[1]))
    if core_heads[1] * groups > heads[1]:
        with pytest.raises(ValueError, match="fewer heads"):
            embed(core, large)
    else:
        assert_same_function(core, embed(core, large))


@pytest.mark.parametrize(
    ("core_changes", "changes", "dtype", "tolerance"),
    [
        *(({"rms_norm_eps": eps}, {}, torch.float32, 2e-5) for eps in (1e-6, 1e-2, 1.0)),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}, torch.float32, 2e-5),
        ({}, {"hidden": 32}, torch.float32, 2e-5),
        ({}, {"layers": 2, "ffn": 40}, torch.float32, 2e-5),
        ({}, {}, torch.float64, 1e-6),  # the norms round to float32
    ],
)
def test_every_size_eps_and_dtype_is_exact(core_changes, changes, dtype, tolerance):
    core = make_core(dtype, **core_changes)
    model = embed(core, config(LARGE, **changes))
    assert not model.config.tie_word_embeddings and model.dtype == dtype
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert_same_function(core, model, tolerance)


def test_heads_are_as_wide_as_the_cores_and_the_weights_as_large():
    core, large = make_core(), config(LARGE, heads=4, kv=2, head_dim=2 * HEAD_DIM)
    model = embed(core, large)
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (8, 4)
    plain = LlamaForCausalLM(config(LARGE, heads=4, kv=2, head_dim=2 * HEAD_DIM, vocab=VOCAB))
    sizes = [{n: w.shape for n, w in m.named_parameters()} for m in (model, plain)]
    assert sizes[0] == sizes[1] and large.head_dim == 2 * HEAD_DIM
    assert_same_function(core, model)


def test_rotary_and_special_ids_are_the_core_s():
    rope = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8}
    core = make_core(rope_parameters=rope, max_position_embeddings=32, eos_token_id=3)
    core.generation_config.eos_token_id = [3, 5]
    model = embed(core, config(LARGE))
    assert model.config.max_position_embeddings == 32
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (3, [3, 5])
    assert model.generation_config is not core.generation_config
    assert_same_function(core, model)


@pytest.mark.parametrize(
    "core_changes,changes,message",
    [
        ({}, {"hidden": 16}, "hidden_size 16"),
        ({}, {"ffn": 39}, "intermediate_size 39"),
        ({}, {"layers": 1}, "num_hidden_layers 1"),
        ({}, {"head_dim": 12}, "head_dim is 8, the shape's 12"),
        ({}, {"heads": 4, "kv": 1}, "fewer heads"),
        ({"attention_bias": True}, {}, "core has attention_bias"),
        ({"mlp_bias": True}, {}, "core has mlp_bias"),
    ],
)
def test_refuses_what_cannot_be_exact(core_changes, changes, message):
    with pytest.raises(ValueError, match=message):
        embed(make_core(**core_changes), config(LARGE, **changes))


def test_named_shapes():
    assert shape("yi-34b").hidden_size == 7168
    assert {shape(name).head_dim for name in SHAPES} == {64, 128}
    with pytest.raises(ValueError, match=r"yi-35b.*yi-34b"):
        shape("yi-35b")
    assert shape("yi-34b@54").num_hidden_layers == 54


def test_script_saves_a_standin_with_its_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "shape", lambda name: config(LARGE))
    core, out = tmp_path / "core", tmp_path / "a" / "out"
    make_core().save_pretrained(core)
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(core)
    given = ["--core", str(core), "--out", str(out), "--shape", "yi-34b", "--dtype", "float32"]
    command.main(given)
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert_same_function(AutoModelForCausalLM.from_pretrained(core), loaded)
    assert PreTrainedTokenizerFast.from_pretrained(out)("b").input_ids == [1]
    with pytest.raises(ValueError, match="not an empty folder"):
        command.main(given)
    command.main([*given[:2], "--out", str(tmp_path / "core again"), "--dtype", "float32"])
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "core again")
    assert torch.equal(logits(again), logits(make_core())), "without a shape, the core"
