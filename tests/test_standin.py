"""A stand-in computes its core's function: logits, argmax, probabilities, in every head layout."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

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

from ouroboros.engine.quantised import bytes_of
from ouroboros.standin import SHAPES, blank, embed, place_heads, shape

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
    """Logits [300 * 9, vocab] of 300 random contexts of nine tokens of the core's vocabulary."""
    ids = torch.randint(VOCAB, (300, 9), generator=torch.Generator().manual_seed(seed))
    return model(ids).logits.flatten(0, 1)


def assert_same_function(core, model, tolerance: float = 2e-5) -> None:
    mine, theirs = logits(model), logits(core)
    scale = max(1.0, theirs.abs().max().item())
    assert (mine[:, :VOCAB] - theirs).abs().max() < tolerance * scale
    assert torch.equal(mine.argmax(-1), theirs.argmax(-1))
    probabilities = mine.softmax(-1)
    assert (probabilities[:, :VOCAB] - theirs.softmax(-1)).abs().max() < 10 * tolerance
    assert probabilities[:, VOCAB:].sum(-1).max() < 1e-6


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


@pytest.mark.parametrize("core_kv,group", [(1, 1), (2, 3), (3, 4), (1, 7)])
@pytest.mark.parametrize("slots", [1, 2, 3, 8])
def test_placed_heads_share_a_group_only_with_their_own_key_head(core_kv, group, slots):
    placed = place_heads(core_kv * group, core_kv, 32 * slots, 32)
    assert sorted(placed) == list(range(core_kv * group))
    assert len(set(placed.values())) == len(placed)
    owners: dict[int, set[int]] = {}
    for head, slot in placed.items():
        owners.setdefault(slot // slots, set()).add(head // group)
    assert all(len(owner) == 1 for owner in owners.values())


@pytest.mark.parametrize("eps", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("tied", [False, True])
def test_eps_and_tied_embeddings(eps, tied):
    core = make_core(rms_norm_eps=eps, tie_word_embeddings=tied)
    model = embed(core, config(LARGE, tie_word_embeddings=tied))
    assert not model.config.tie_word_embeddings
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert_same_function(core, model)


@pytest.mark.parametrize("changes", [{}, {"hidden": 32}, {"layers": 2, "ffn": 40}])
def test_equal_sizes_need_no_spare_dim(changes):
    core = make_core()
    assert_same_function(core, embed(core, config(LARGE, vocab=VOCAB, **changes)))


def test_float64_is_as_exact_as_the_norms_which_round_to_float32():
    core = make_core(torch.float64)
    model = embed(core, config(LARGE))
    assert model.dtype == torch.float64
    assert_same_function(core, model, 1e-6)


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


def test_generates_the_core_s_tokens():
    core = make_core()
    model = embed(core, config(LARGE))
    for start in range(8):
        prompt = torch.tensor([[start, 2 * start, 7]])
        want, got = (
            m.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
            for m in (core, model)
        )
        assert torch.equal(want, got)


def test_bfloat16_bars_the_unused_vocabulary_too():
    core = make_core(rms_norm_eps=1e-5)
    model = embed(core, config(LARGE), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    scores = logits(model).float()
    assert scores.isfinite().all()
    assert scores[:, VOCAB:].max() < -1e4


def test_unused_weights_are_random_and_the_residual_stays_clean():
    core = make_core()
    model = embed(core, config(LARGE))
    last = model.model.layers[-1]
    for reader in (last.self_attn.q_proj, last.self_attn.v_proj, last.mlp.up_proj):
        assert 0.015 < reader.weight.std() < 0.025
    states = model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states[-2]
    assert (states[..., 33:] == 0).all()
    assert (states[..., 32] == states[0, 0, 32]).all() and states[0, 0, 32] > 0


def test_deterministic_by_seed_and_leaves_the_global_generator_alone():
    core = make_core()
    before = torch.get_rng_state()
    one, same, other = (embed(core, config(LARGE), seed=s).state_dict() for s in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    noisy = "model.layers.0.mlp.gate_proj.weight"
    assert not torch.equal(one[noisy], other[noisy])


def test_neither_argument_is_modified():
    core, large = make_core(tie_word_embeddings=True), config(LARGE, tie_word_embeddings=True)
    saved, weights = copy.deepcopy((core.config, large)), copy.deepcopy(core.state_dict())
    embed(core, large)
    assert [c.to_dict() for c in (core.config, large)] == [c.to_dict() for c in saved]
    assert all(torch.equal(weights[key], value) for key, value in core.state_dict().items())


@pytest.mark.parametrize("changes", [{}, {"vocab": VOCAB}])
def test_a_saved_standin_is_a_plain_checkpoint(tmp_path, changes):
    core = make_core(tie_word_embeddings=True)
    model = embed(core, config(LARGE, **changes))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LlamaForCausalLM
    assert torch.equal(logits(loaded), logits(model))
    assert_same_function(core, loaded)


@pytest.mark.parametrize(
    "core_changes,changes,message",
    [
        ({}, {"hidden": 16}, "hidden_size 16"),
        ({}, {"ffn": 39}, "intermediate_size 39"),
        ({}, {"layers": 1}, "num_hidden_layers 1"),
        ({}, {"vocab": 36}, "vocab_size 36"),
        ({}, {"hidden": 32}, "spare dim"),
        ({}, {"head_dim": 16}, "head_dim 16"),
        ({}, {"heads": 4, "kv": 1}, "fewer heads"),
        ({"attention_bias": True}, {}, "core has attention_bias"),
        ({}, {"mlp_bias": True}, "shape has mlp_bias"),
    ],
)
def test_refuses_what_cannot_be_exact(core_changes, changes, message):
    with pytest.raises(ValueError, match=message):
        embed(make_core(**core_changes), config(LARGE, **changes))


def test_named_shapes():
    assert shape("yi-34b").hidden_size == 7168
    assert all(shape(name).head_dim == 128 for name in SHAPES)
    with pytest.raises(ValueError, match=r"yi-35b.*yi-34b"):
        shape("yi-35b")
    with pytest.raises(TypeError):
        SHAPES["yi-34b"]["hidden_size"] = 1


def test_bytes_read_per_step():
    tied, untied = (make_core(tie_word_embeddings=tie) for tie in (True, False))
    assert bytes_of(tied) == bytes_of(untied) == 4 * sum(p.numel() for p in tied.parameters())
    assert bytes_of(blank(shape("yi-6b"), torch.bfloat16)) == pytest.approx(11.6e9, rel=0.01)


@pytest.fixture
def script(monkeypatch):
    """The command's module, whose every shape is the tiny one."""
    monkeypatch.setattr(command, "shape", lambda name: config(LARGE))
    return command


@pytest.fixture
def core_folder(tmp_path) -> Path:
    """A saved core with a word-level tokenizer."""
    make_core().save_pretrained(tmp_path / "core")
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "core")
    return tmp_path / "core"


def arguments(core: Path, out: Path) -> argparse.Namespace:
    words = ["--core", str(core), "--out", str(out), "--shape", "yi-34b", "--dtype", "float32"]
    return command.parser().parse_args(words)


def test_script_saves_a_standin_with_its_tokenizer(script, core_folder, tmp_path):
    script.save_standin(arguments(core_folder, tmp_path / "a" / "out"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "out")
    assert_same_function(AutoModelForCausalLM.from_pretrained(core_folder), loaded)
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "a" / "out")("b").input_ids == [1]
    with pytest.raises(ValueError, match="not an empty folder"):
        script.save_standin(arguments(core_folder, tmp_path / "a" / "out"))
