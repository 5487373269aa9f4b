"""A model by transformers' own forward alone: none of this library's cache, masks or attention.

What an audit holds a run against must not share the code that it judges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel

from ouroboros.engine.quantised import dequantise, quantised_by


@torch.inference_mode()
def plain_logits(
    model: PreTrainedModel, prompt: Sequence[int], new: Sequence[int], *, rows: int
) -> torch.Tensor:
    """Return the logits that each new token was chosen from, in float64, [len(new), vocab].

    The prompt is one call, then come calls of `rows` tokens; with `rows` of len(new) or more,
    everything is one call. The last new token is not fed: nothing follows it.
    """
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    fed = list(new[:-1])
    calls = [list(prompt), *(fed[i : i + rows] for i in range(0, len(fed), rows))]
    if rows >= len(fed):
        calls = [[*prompt, *fed]]
    cache, found = DynamicCache(config=model.config), []
    for index, ids in enumerate(calls):
        batch = torch.tensor([ids], device=weight.device)
        out = model(batch, past_key_values=cache, use_cache=True)
        found.append(out.logits[0, 0 if index else len(prompt) - 1 :].double())
    return torch.cat(found)[: len(new)]


def recast(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Return a copy with the same weights in another precision, on transformers' eager code.

    Quantised weights are multiplied out. Raises `ValueError` where that cannot be done.
    """
    own = dequantise(model, dtype) if quantised_by(model) else copy.deepcopy(model)
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
