"""A model by transformers' own forward alone: none of this library's cache, masks or attention.

What an audit holds a run against must not share the code that it judges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def plain_logits(
    model: PreTrainedModel, prompt: Sequence[int], new: Sequence[int], *, rows: int
) -> torch.Tensor:
    """Return the logits after the prompt and after each new token, in float64,
    [len(new) + 1, vocab], from calls of `rows` tokens (the prompt is one call; with `rows` of
    len(new) or more everything is)."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    calls = [list(prompt), *(list(new[i : i + rows]) for i in range(0, len(new), rows))]
    if rows >= len(new):
        calls = [[*prompt, *new]]
    cache, found = DynamicCache(config=model.config), []
    for ids in calls:
        out = model(
            torch.tensor([ids], device=weight.device), past_key_values=cache, use_cache=True
        )
        found.append(out.logits[0].double())
    return torch.cat(found)[len(prompt) - 1 :]


def recast(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a copy with the same weights in another precision, on transformers' eager code."""
    own = copy.deepcopy(model)
    torch.nn.Module.to(own, device=device, dtype=dtype)
    own.set_attn_implementation("eager")
    return own.eval()


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run the model on transformers' own attention for a while."""
    used = model.config._attn_implementation
    if used not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(used)
