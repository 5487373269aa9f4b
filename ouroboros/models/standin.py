"""Stand-ins: a small trained model embedded in a large model, with the large model's call cost.

To time a decoder realistically, a call must move as many bytes as in a large model, and draft and
target must agree as often as a real pair; the large model's weights are not needed. `embed` builds
a `LlamaForCausalLM` with the dimensions of a large model that computes the same function as a small
model, its *core*. Measurements with it are labelled "stand-in".

Invariant, after every layer: the first d of D residual dimensions equal the core's residual, and
all others are exactly zero. Hence, where S is the sum of squares of the core's residual,

    mean over D of x^2, plus eps d / D  =  d/D (S / d + eps)

So a norm whose epsilon is scaled by d/D and whose weights are scaled by sqrt(d/D) returns what the
core's norm returns.
"""

from __future__ import annotations

import copy
import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama as llama

NOISE_STD = 0.02  # Standard deviation of unused weights; zeros might change the call's time.
INHERITED = (
    *("rope_parameters", "max_position_embeddings", "hidden_act", "vocab_size"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size"),
)
SHAPES = {
    "yi-34b": (7168, 60, 56, 8, 20480, 64000),
    "yi-6b": (4096, 32, 32, 4, 11008, 64000),
    "deepseek-coder-33b": (7168, 62, 56, 8, 19200, 32256),
    "deepseek-coder-6.7b": (4096, 32, 32, 32, 11008, 32256),
    "codellama-34b": (8192, 48, 64, 8, 22016, 32000),
    "codellama-7b": (4096, 32, 32, 32, 11008, 32016),
    "llama-2-7b": (4096, 32, 32, 32, 11008, 32000),
    "llama-2-70b": (8192, 80, 64, 8, 28672, 32000),
    "smollm2-360m": (960, 32, 15, 5, 2560, 49152, 64),
}
"""The `FIELDS` of named shapes, and the head dimension if it is not 128."""


def shape(name: str) -> LlamaConfig:
    """Return a config with the dimensions of a large model, by name; "yi-34b@54" has 54 layers.
    Raises `ValueError` for an unknown name."""
    whole, _, layers = name.partition("@")
    if whole not in SHAPES or (layers and not layers.isdecimal()):
        raise ValueError(f"unknown shape {name!r}; choose one of {', '.join(SHAPES)}")
    dims = {"head_dim": 128} | dict(zip((*FIELDS, "head_dim"), SHAPES[whole], strict=False))
    if layers:
        dims["num_hidden_layers"] = int(layers)
    return LlamaConfig(**dims)  # type: ignore[arg-type]


def embed(
    core: LlamaForCausalLM,
    shape: LlamaConfig,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LlamaForCausalLM:
    """Return a model with the dimensions of the config `shape` that computes the core's function.

    Weights are written directly on `device` in `dtype` (default: the core's), without a host copy.
    Vocabulary, rotary parameters, maximum position, activation, special ids, head dimension and
    generation config are the core's. Narrower heads than the shape's are as many more, so that
    layers and KV cache have the same sizes. Embeddings are never tied. The first layers are the
    core's; further layers add zero. In bfloat16, core and stand-in round differently, so compare a
    stand-in with itself only.

    Raises `ValueError` if the core is larger than `shape`, has biases or is no Llama model.
    """
    shape = _with_heads_of(core.config, shape)
    _check(core.config, shape)
    heads = place_heads(*_head_counts(core.config), *_head_counts(shape))
    device, dtype = torch.device(device or core.device), dtype or core.dtype
    config = copy.deepcopy(shape)
    for name in INHERITED:
        setattr(config, name, copy.deepcopy(getattr(core.config, name)))
    config.tie_word_embeddings = False
    config.rms_norm_eps = core.config.rms_norm_eps * core.config.hidden_size / shape.hidden_size
    with torch.device("meta"):  # allocates no memory
        model: LlamaForCausalLM = LlamaForCausalLM(config).to(dtype)  # type: ignore[arg-type]
    model.to_empty(device=device)
    model.model.rotary_emb = llama.LlamaRotaryEmbedding(config).to(device)
    with torch.no_grad():
        _fill(model, core, heads)
    model.generation_config = copy.deepcopy(core.generation_config)
    return model.eval()


def _with_heads_of(core: LlamaConfig, shape: LlamaConfig) -> LlamaConfig:
    """Return the shape with heads as wide as the core's, and as many more."""
    assert shape.head_dim is not None and core.head_dim is not None  # set by LlamaConfig
    more, left = divmod(shape.head_dim, core.head_dim)
    if left or more == 1:
        return shape
    shape = copy.deepcopy(shape)
    shape.num_attention_heads, shape.num_key_value_heads = (n * more for n in _head_counts(shape))
    shape.head_dim = core.head_dim
    return shape


def _head_counts(config: LlamaConfig) -> tuple[int, int]:
    return config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads


def place_heads(core_heads: int, core_kv: int, heads: int, kv: int) -> dict[int, int]:
    """Return {query head of the core: query head of the stand-in}. The core has `core_heads` query
    heads and `core_kv` key heads, the stand-in `heads` and `kv`.

    Query heads that share a key head form a group. If the core's groups are larger than the
    stand-in's, each takes several groups of the stand-in, with copied key and value heads. Raises
    `ValueError` if the stand-in has too few groups.

    >>> place_heads(4, 2, 14, 2)
    {0: 0, 1: 1, 2: 7, 3: 8}
    >>> place_heads(6, 2, 8, 4)
    {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 5: 6}
    """
    group, slots = core_heads // core_kv, heads // kv
    width = math.ceil(group / slots)
    if core_kv * width > kv:
        raise ValueError(
            f"the core's {core_kv} key heads with {group} query heads each need {core_kv * width} "
            f"groups of {slots}, and the shape has {kv}: use a core with fewer heads"
        )
    return {
        head: (head // group * width + head % group // slots) * slots + head % group % slots
        for head in range(core_heads)
    }


def _check(core: LlamaConfig, shape: LlamaConfig) -> None:
    """Raise `ValueError` if `embed` cannot embed a core exactly in a model of these dimensions."""
    if core.model_type != "llama":
        raise ValueError(f"the core is a {core.model_type!r} model; use a Llama model")
    for bias in ("attention_bias", "mlp_bias"):
        if getattr(core, bias):
            raise ValueError(f"the core has {bias}=True; use one without biases")
    if core.head_dim != shape.head_dim:
        raise ValueError(
            f"the core's head_dim is {core.head_dim}, the shape's {shape.head_dim}: use a divisor"
        )
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers"):
        small, large = getattr(core, name), getattr(shape, name)
        if small > large:
            raise ValueError(
                f"the shape's {name} {large} is below the core's {small}: use a larger shape"
            )


def _fill(model: LlamaForCausalLM, core: LlamaForCausalLM, heads: dict[int, int]) -> None:
    """Write every weight of `model`, with the core's query heads at `heads` (see `place_heads`).
    Unused weights are seeded noise."""
    noise = torch.Generator(model.device).manual_seed(0)
    _pad(model.model.embed_tokens.weight.zero_(), core.model.embed_tokens.weight)
    head = model.lm_head.weight.normal_(0, NOISE_STD, generator=noise)
    _pad(head, core.lm_head.weight)
    _fill_norm(model.model.norm, core.model.norm.weight)
    for index, layer in enumerate(model.model.layers):
        for name, weight in layer.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()  # layers beyond the core's add zero to the residual
            elif weight.dim() == 2:
                weight.normal_(0, NOISE_STD, generator=noise)
        source = core.model.layers[index] if index < len(core.model.layers) else None
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm = (
                torch.ones(core.config.hidden_size)
                if source is None
                else getattr(source, name).weight
            )
            _fill_norm(getattr(layer, name), norm)
        if source is None:
            continue
        _place_attention(layer.self_attn, source.self_attn, heads)
        for name in ("gate_proj", "up_proj", "down_proj"):
            _pad(getattr(layer.mlp, name).weight, getattr(source.mlp, name).weight)


def _fill_norm(norm: llama.LlamaRMSNorm, weight: torch.Tensor) -> None:
    """Write the core's norm `weight`, scaled by sqrt(d/D), to the first d elements of `norm`; zero
    the rest."""
    scale = math.sqrt(weight.numel() / norm.weight.numel())
    norm.weight.zero_()[: weight.numel()].copy_(weight.double() * scale)


def _place_attention(
    attention: llama.LlamaAttention, core: llama.LlamaAttention, heads: dict[int, int]
) -> None:
    """Copy each query head to its new index, with its key and value heads and output columns."""
    size = core.head_dim
    for head, slot in heads.items():
        key, kv = head // core.num_key_value_groups, slot // attention.num_key_value_groups
        for name, to, at in (("q_proj", slot, head), ("k_proj", kv, key), ("v_proj", kv, key)):
            large, small = getattr(attention, name).weight, getattr(core, name).weight
            _pad(large[to * size :], small[at * size : (at + 1) * size])
        columns = core.o_proj.weight[:, head * size : (head + 1) * size]
        _pad(attention.o_proj.weight[:, slot * size :], columns)


def _pad(large: torch.Tensor, small: torch.Tensor) -> None:
    """Write a matrix into the upper left corner of a larger one, in place."""
    large[: small.shape[0], : small.shape[1]].copy_(small)
