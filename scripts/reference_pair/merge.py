"""Make a shallow draft from a deep target: neighbouring layers side by side in one wide layer.

Two consecutive layers change the residual stream little, so computing both from the same input
differs little from computing them in turn. Example: merging the reference target's six layers as
(0) (1 2) (3 4) (5) picks the target's token at 81 % of positions, untrained; keeping four of the
six layers gets at most 57 %.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

BLOCKS = (
    ("input_layernorm", "self_attn", ["q_proj", "k_proj", "v_proj"], "o_proj"),
    ("post_attention_layernorm", "mlp", ["gate_proj", "up_proj"], "down_proj"),
)
PAD_STD = 0.02  # standard deviation of new units' input weights; their output weights begin at zero


@torch.no_grad()
def merge_layers(
    target: LlamaForCausalLM, groups: Sequence[Sequence[int]], ffn: int
) -> LlamaForCausalLM:
    """Return a new model in float32 with one layer per group of the target's layers (indices).

    A layer has the attention heads of its group and, of the group's feed-forward units, the `ffn`
    with the largest weights. Layers of smaller groups are padded with units whose output is zero
    before training.
    """
    config, width = copy.deepcopy(target.config), max(map(len, groups))
    config.num_hidden_layers = len(groups)
    config.num_attention_heads *= width
    config.num_key_value_heads = (config.num_key_value_heads or 1) * width
    config.intermediate_size = ffn
    draft = LlamaForCausalLM(config).float()
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    for layer, group in zip(draft.model.layers, groups, strict=True):
        parts = [target.model.layers[index] for index in group]
        for names in BLOCKS:
            merge(layer, parts, *names)
    return draft


def merge(layer, parts: list, norm: str, block: str, inputs: list[str], output: str) -> None:
    """Fill a block (attention or feed-forward) of a new layer with the units of the layers `parts`
    side by side, as many as fit. `norm` (before the block), `block`, `inputs` and `output` (its
    projections) are names of modules. The new norm is the mean of the parts' norms; each part's
    input weights are scaled by its norm / this mean."""
    norms = [getattr(part, norm).weight for part in parts]
    getattr(layer, norm).weight.copy_(sum(norms) / len(norms))
    scales = [own / getattr(layer, norm).weight for own in norms]
    blocks, new = [getattr(part, block) for part in parts], getattr(layer, block)
    rows = [
        torch.cat([getattr(b, name).weight * s for b, s in zip(blocks, scales, strict=True)])
        for name in inputs
    ]
    columns = torch.cat([getattr(b, output).weight for b in blocks], 1)
    size = getattr(new, output).weight.shape[1]
    if columns.shape[1] > size:  # feed-forward: the units with the largest weights
        kept = (rows[-1].norm(dim=1) * columns.norm(dim=0)).topk(size).indices.sort().values
        rows, columns = [row[kept] for row in rows], columns[:, kept]
    for name, row in zip(inputs, rows, strict=True):
        getattr(new, name).weight.normal_(0, PAD_STD)[: len(row)] = row
    getattr(new, output).weight.zero_()[:, : columns.shape[1]] = columns
