"""Score text with transformers' own forward pass, without this library's cache, masks or attention.

It must not use the cache, masks or attention of the decoders that it checks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel

from ouroboros.engine.cache import cache_argument
from ouroboros.engine.quantised import dequantise, quantised_by


@torch.inference_mode()
def plain_logits(
    model: PreTrainedModel, prompt: Sequence[int], new: Sequence[int], *, rows: int
) -> torch.Tensor:
    """Return the logits from which each new token is chosen, [len(new), vocab] float64.

    The prompt is fed in one call, the new tokens but the last in calls of `rows` tokens. If `rows`
    is at least their number, prompt and new tokens are fed in one call.
    """
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    fed = list(new[:-1])
    calls = [list(prompt), *(fed[i : i + rows] for i in range(0, len(fed), rows))]
    if rows >= len(fed):
        calls = [[*prompt, *fed]]
    cache, logits = DynamicCache(config=model.config), []
    for index, ids in enumerate(calls):
        batch = torch.tensor([ids], device=weight.device)
        out = model(batch, use_cache=True, **{cache_argument(model): cache})
        logits.append(out.logits[0, 0 if index else len(prompt) - 1 :].double())
    return torch.cat(logits)[: len(new)]


def recast(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a copy of a model in another precision, with transformers' eager attention.

    Quantised weights are dequantised. Raises `ValueError` if that is impossible.
    """
    copied = dequantise(model, dtype) if quantised_by(model) else copy.deepcopy(model)
    torch.nn.Module.to(copied, device=device, dtype=dtype)
    copied.set_attn_implementation("eager")
    return copied.eval()


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """Context manager in which a model with this library's attention uses transformers' `sdpa`."""
    used = model.config._attn_implementation
    if used not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(used)
