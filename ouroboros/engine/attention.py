"""Tree attention that reads cached keys and values in place.

Under `sdpa` with a mask, transformers repeats every key and value head for each query head of its
group, which copies the whole context in each layer, at each step. *Packed* attention instead stacks
a group's query heads along the query axis, which gives the same sums without copies. On a GPU the
kernel in `ouroboros.engine.triton_attention` does the same and also splits the context between the
multiprocessors.

Both are registered with transformers' `AttentionInterface`, also for joint calls of several
sequences. A model that runs on `sdpa` is switched to packed attention or the kernel; any other
model keeps its own implementation. Unsupported calls fall back to transformers' own function.
"""

from __future__ import annotations

import logging

import torch
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ouroboros.engine.joint import register
from ouroboros.engine.triton_attention import fits, tree_attention, why_no_kernel

NAME, KERNEL_NAME = "ouroboros_packed", "ouroboros_kernel"
log = logging.getLogger(__name__)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attend with [1, heads, n, width] queries over [1, kv_heads, slots, width] keys and values.

    Returns [1, n, heads, width] (and None). `attention_mask` is [1, 1, n, slots], additive or
    boolean. Calls with one query head per key head, with several tokens and no mask, with a mask
    per head or with position biases are passed to transformers' own `sdpa` function.
    """
    _, heads, n, width = query.shape
    group = heads // key.shape[1]
    plain = attention_mask is None and n > 1
    odd_mask = attention_mask is not None and attention_mask.shape[1] != 1
    if group == 1 or plain or odd_mask or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    packed = query.reshape(len(query), -1, group * n, width)
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, group, -1, -1).flatten(1, 2)[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return out.reshape(len(query), heads, n, -1).transpose(1, 2).contiguous(), None


def kernel_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Compute `packed_attention` with the Triton kernel if it supports the call (see `fits`), else
    without it. An unsupported call whose mask is an int32 table, which only the kernel reads,
    raises `ValueError`."""
    special = any(kwargs.get(name) is not None for name in ("softcap", "position_bias"))
    if special or attention_mask is None or not fits(query, key, value, attention_mask):
        if attention_mask is not None and attention_mask.dtype == torch.int32:
            raise ValueError("the attention kernel does not support its layers")
        return packed_attention(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree_attention(query, key, value, attention_mask, scale), None


for name, function in ((NAME, packed_attention), (KERNEL_NAME, kernel_attention)):
    register(name, function, sdpa_mask)


def attention_of(model: PreTrainedModel) -> str:
    """Return the name of a model's attention implementation."""
    return model.config.get_text_config()._attn_implementation


def use_packed_attention(model: PreTrainedModel) -> str | None:
    """Switch a model that runs on `sdpa` to the Triton kernel if it works on this GPU, else to
    packed attention. Return None, or why the model was left unchanged (it does not run on `sdpa`),
    or why the kernel does not work on this GPU."""
    config = model.config.get_text_config()
    if config._attn_implementation == KERNEL_NAME:
        return None
    if not model._supports_attention_backend or config._attn_implementation not in ("sdpa", NAME):
        return "the model does not run on sdpa"
    reason = None
    if model.device.type == "cuda":
        heads = getattr(config, "num_attention_heads", 0)
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        reason = why_no_kernel(model.device, model.dtype, width)
        if reason is None:
            model.set_attn_implementation(KERNEL_NAME)
            return None
        log.warning("attention runs without the project's kernel (%s)", reason)
    model.set_attn_implementation(NAME)
    return reason
