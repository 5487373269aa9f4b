"""Tiny configs of every architecture that is supported, and of those refused by name."""

from tiny import SHAPE
from transformers import AutoConfig

WINDOW = 8
SLIDING = {"sliding_window": WINDOW}
MIXED = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
MOE |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "v_head_dim": 6}
LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
KINDS: tuple[tuple[str, dict], ...] = (
    (
        "llama qwen3 gemma olmo olmo2 granite cohere stablelm nemotron gpt_neox gpt_bigcode gpt2 "
        "ernie4_5 glm glm4 helium hunyuan_v1_dense nanochat persimmon seed_oss smollm3",
        {},
    ),
    ("mistral starcoder2", SLIDING),
    ("ministral gemma2 gemma3_text olmo3 cohere2 exaone4 vaultgemma", MIXED),
    ("qwen2_moe qwen3_moe phimoe granitemoe minimax_m2", MOE),
)
SUPPORTED: dict[str, dict] = {
    **{name: changes for names, changes in KINDS for name in names.split()},
    "mixtral": {**MOE, **SLIDING},
    "qwen2": {**SLIDING, "use_sliding_window": True, "max_window_layers": 1},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {**SLIDING, "partial_rotary_factor": 1.0},
    "gpt_oss": {**MOE, **MIXED},
    "deepseek_v2": {**LATENT, **ROUTED, **MOE},
    "deepseek_v3": {**LATENT, **ROUTED, **MOE, "first_k_dense_replace": 1},
    "falcon": {"alibi": False},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "glm4_moe": {**ROUTED, **MOE},
    "modernbert-decoder": {"local_attention": 2 * WINDOW},
}
LINEAR = ["linear_attention", "full_attention"]
REFUSED: dict[str, tuple[dict, str]] = {
    "bloom": ({}, "takes no position_ids, as with ALiBi"),
    "mpt": ({"d_model": 16, "n_heads": 4, "n_layers": 2}, "ALiBi"),
    "falcon": ({"alibi": True}, "explicit masks"),
    "gpt_neo": ({"attention_types": [[["global", "local"], 1]]}, "window_size=16"),
    "mamba": ({}, "linear_attention|recurrent|no key/value cache"),
    "recurrent_gemma": ({"num_hidden_layers": 3}, "linear_attention|explicit masks"),
    "rwkv": ({}, "no key/value cache"),
    "qwen3_next": ({**MOE, "layer_types": LINEAR}, "layers of type linear_attention"),
    "jamba": ({**MOE, "use_mamba_kernels": False}, "layers of type linear_attention"),
    "llama4_text": (MOE, "layers of type chunked_attention"),
    "moshi": (SLIDING, "a sliding window that its masks do not keep"),
}
SPECIAL = {"gpt_neo": {"window_size": 16, "num_layers": 2, "num_heads": 4}}


def config_of(name: str, changes: dict):
    shape = {**SHAPE, **SPECIAL.get(name, {}), **changes}
    if isinstance(getattr(type(AutoConfig.for_model(name)), "head_dim", None), property):
        del shape["head_dim"]
    return AutoConfig.for_model(name, **shape)
