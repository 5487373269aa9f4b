"""One engine, any decoder-only architecture: each equal to `generate`, or refused by name.

Nothing in `ouroboros` names a model. Configs are tiny and weights random, large and decisive; every
text is longer than every sliding window. `python tests/engine/test_architectures.py` prints the
table of docs/compatibility.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import transformers
from ouroboros.baselines import Greedy, Lookahead, Speculative
from parts import InParts
from tiny import SHAPE, RandomDrafter, build, llama, noisy, plain, prompt_of
from transformers import AutoConfig, BartConfig, BartForConditionalGeneration, PreTrainedModel

from ouroboros import CachedModel, Ouroboros, OuroborosPaper, decode
from ouroboros.engine import support

WINDOW = 8
LENGTH, NEW = 21, 16
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
MOE |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}

SUPPORTED: dict[str, dict] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "ministral": MIXED,
    "mixtral": {**MOE, "sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW},
    "qwen2_moe": MOE,
    "qwen3": {},
    "qwen3_moe": MOE,
    "gemma": {},
    "gemma2": MIXED,
    "gemma3_text": MIXED,
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": WINDOW, "partial_rotary_factor": 1.0},
    "phimoe": MOE,
    "olmo": {},
    "olmo2": {},
    "olmo3": MIXED,
    "granite": {},
    "granitemoe": MOE,
    "starcoder2": {"sliding_window": WINDOW},
    "cohere": {},
    "cohere2": MIXED,
    "stablelm": {},
    "nemotron": {},
    "gpt_oss": {**MOE, **MIXED},
    "deepseek_v2": {**LATENT, **ROUTED, **MOE},
    "deepseek_v3": {**LATENT, **ROUTED, **MOE, "first_k_dense_replace": 1},
    "minimax_m2": MOE,
    "gpt_neox": {},
    "gpt_bigcode": {},
    "falcon": {"alibi": False},
    "gpt2": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "ernie4_5": {},
    "exaone4": MIXED,
    "glm": {},
    "glm4": {},
    "glm4_moe": {**ROUTED, **MOE},
    "helium": {},
    "hunyuan_v1_dense": {},
    "modernbert-decoder": {"local_attention": 2 * WINDOW},
    "nanochat": {},
    "persimmon": {},
    "seed_oss": {},
    "smollm3": {},
    "vaultgemma": MIXED,
}
LINEAR = ["linear_attention", "full_attention"]
REFUSED: dict[str, tuple[dict, str]] = {
    "bloom": ({}, "takes no position_ids, as where positions are ALiBi"),
    "mpt": ({"d_model": 16, "n_heads": 4, "n_layers": 2}, "ALiBi"),
    "falcon": ({"alibi": True}, "alibi=True"),
    "gpt_neo": ({"attention_types": [[["global", "local"], 1]]}, "window_size=16"),
    "mamba": ({}, "linear_attention|recurrent|no key/value cache"),
    "recurrent_gemma": ({}, "linear_attention|does not accept explicit masks"),
    "rwkv": ({}, "no key/value cache"),
    "qwen3_next": ({**MOE, "layer_types": LINEAR}, "layers of type linear_attention"),
    "jamba": ({**MOE, "use_mamba_kernels": False}, "layers of type linear_attention"),
    "llama4_text": (MOE, "layers of type chunked_attention"),
    "moshi": ({"sliding_window": WINDOW}, "a sliding window that its masks do not keep"),
}
SPECIAL = {"gpt_neo": {"window_size": 16, "num_layers": 2, "num_heads": 4}}


@dataclass(frozen=True)
class Row:
    """What was found for one architecture: texts compared and unequal, or why it is refused."""

    architecture: str
    model_class: str
    attention: str
    compared: int = 0
    unequal: int = 0
    distinct: int = 0
    refusal: str = ""


def config_of(name: str, changes: dict):
    shape = {**SHAPE, **SPECIAL.get(name, {}), **changes}
    if isinstance(getattr(type(AutoConfig.for_model(name)), "head_dim", None), property):
        del shape["head_dim"]
    return AutoConfig.for_model(name, **shape)


def attention_of(target: CachedModel) -> str:
    if target.sliding_window is None:
        return "full"
    return "full and sliding" if target.layer_types else "sliding"


def lively(name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, list[int], list[int]]:
    """A model, a prompt and transformers' own text, the first that is not a loop of one token."""
    for seed in range(12):
        model, prompt = build(config_of(name, SUPPORTED[name]), seed=seed, dtype=dtype), None
        prompt = prompt_of(LENGTH, seed)
        truth = plain(model, prompt, NEW)
        if len(set(truth[LENGTH:])) >= 4:
            break
    return model, prompt, truth


def decoders(draft: CachedModel, truth: list[int], dtype: torch.dtype) -> Iterator:
    """All of them in float64; the two with the widest trees in float32."""
    sizes = {"window_size": 3, "ngram_size": 4, "verification_set_size": 3}
    yield Ouroboros(draft)
    yield OuroborosPaper(draft, gamma=4, **sizes)
    yield RandomDrafter(truth, seed=1, hit=0.8)
    if dtype == torch.float64:
        yield Greedy()
        yield Lookahead(**sizes)
        yield Speculative(draft, gamma=4)


def compare(name: str, dtype: torch.dtype) -> Row:
    """Decode with every decoder and count the texts that are not transformers' own."""
    model, prompt, truth = lively(name, dtype)
    draft = CachedModel(noisy(copy.deepcopy(model)))
    target = CachedModel(model)
    texts = [
        decode(target, drafter, prompt, max_new=NEW).tokens
        for drafter in decoders(draft, truth, dtype)
    ]
    if dtype == torch.float64:  # in parts; calls of fixed shapes too, as CUDA graphs need them
        for engine in ("eager", "static"):
            parted = InParts(model, engine=engine)
            drafter = RandomDrafter(truth, seed=2, hit=0.8)
            texts.append(decode(parted, drafter, prompt, max_new=NEW).tokens)
    return Row(
        name,
        type(model).__name__,
        attention_of(target),
        len(texts),
        sum(text != truth for text in texts),
        len(set(truth[LENGTH:])),
    )


def refusal(name: str) -> Row:
    """Try to wrap a model that cannot work, and take down the reason given."""
    model = build(config_of(name, REFUSED[name][0]), dtype=torch.float32)
    try:
        CachedModel(model)
    except ValueError as error:
        return Row(name, type(model).__name__, "", refusal=str(error))
    return Row(name, type(model).__name__, "")


def rows() -> Iterator[Row]:
    """Every architecture's row: float32 and float64 together, then the refusals."""
    for name in SUPPORTED:
        first, second = compare(name, torch.float32), compare(name, torch.float64)
        yield Row(
            name,
            first.model_class,
            first.attention,
            first.compared + second.compared,
            first.unequal + second.unequal,
        )
    yield from map(refusal, REFUSED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_every_decoder_equals_generate(name, dtype):
    row = compare(name, dtype)
    assert row.unequal == 0 and row.compared == (8 if dtype == torch.float64 else 3)
    assert row.distinct >= 4
    if "sliding_window" in SUPPORTED[name]:
        assert "sliding" in row.attention


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_by_name_and_reason(name):
    row = refusal(name)
    assert row.refusal.startswith(row.model_class)
    with pytest.raises(ValueError, match=REFUSED[name][1]):
        raise ValueError(row.refusal)
    assert "choose" in row.refusal


def test_an_encoder_decoder_is_refused():
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=13,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
        )
    )
    with pytest.raises(ValueError, match="BartForConditionalGeneration is an encoder-decoder"):
        CachedModel(model)


def test_the_trial_leaves_the_config_as_it_was():
    model = build(config_of("gemma3_text", MIXED))
    before = model.config.to_dict()
    CachedModel(model)
    after = model.config.to_dict()
    assert {k: v for k, v in after.items() if "attn" not in k} == {
        k: v for k, v in before.items() if "attn" not in k
    }


@pytest.mark.parametrize("free", [None, 0], ids=["widened", "as it is"])
def test_half_precision_hides_nothing_from_the_trial(monkeypatch, free):
    """Models of bfloat16 are tried in float32 where that fits, and their weights come back."""
    if free is not None:
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    good, bad = (
        build(config_of(name, config), dtype=torch.bfloat16)
        for name, config in (("llama", {}), ("mpt", REFUSED["mpt"][0]))
    )
    before = {name: (own.data_ptr(), own.dtype) for name, own in good.named_parameters()}
    facts = support.check_tree_support(good)
    assert {layer.dtype for layer in facts.layers} == {torch.bfloat16}
    assert {n: (own.data_ptr(), own.dtype) for n, own in good.named_parameters()} == before
    with support._widened(good) as dtype:
        assert dtype == (torch.bfloat16 if free == 0 else torch.float32)
    with pytest.raises(ValueError, match=r"its logits move by 0\.[4-9]"):
        support.check_tree_support(bad)


def test_the_trials_slots_are_not_its_positions():
    chain, tree = support.trial_tree(8, 1000)
    path = tree.path_to(len(tree) - 1)
    assert [tree.tokens[node] for node in path] == chain and len(tree) == 8 + 2 * support.DECOYS
    assert list(path) == [0, 7, 8, 9, 16, 17, 18, 19]


def test_the_table_is_long_enough():
    assert len(SUPPORTED) >= 25 and len(REFUSED) >= 6


def table() -> str:
    """The compatibility table, as Markdown."""
    lines = [
        f"transformers {transformers.__version__}: {len(SUPPORTED)} architectures, {LENGTH} prompt "
        f"tokens, {NEW} new tokens, sliding windows of {WINDOW}",
        "",
        "| architecture | class | attention | texts compared with `generate` | unequal |",
        "|---|---|---|---|---|",
    ]
    refused = ["", "| refused | class | reason |", "|---|---|---|"]
    for row in rows():
        if row.refusal:
            reason = row.refusal.removeprefix(row.model_class).strip()
            refused.append(f"| {row.architecture} | {row.model_class} | {reason} |")
        else:
            cells = (row.architecture, row.model_class, row.attention, row.compared, row.unequal)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, *refused])


if __name__ == "__main__":
    print(table())


def test_a_call_that_fails_for_another_reason_is_refused_for_that_reason(monkeypatch):
    """As experts' kernels that know no float64: masks have nothing to do with it."""
    model = llama()

    def forward(*args, **kwargs):
        raise RuntimeError("no kernel for this dtype")

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(ValueError, match=r"cannot be called at all in torch.float64 .* no kernel"):
        CachedModel(model)
