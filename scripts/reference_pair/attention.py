"""Attention for training on a CPU: two plain products a layer, which AMX runs at full speed.

torch's flash attention for CPUs spends most of a small model's backward pass in itself. Here the
queries that share a key head lie in one matrix, in blocks of rows; a block reads the keys up to
its own end, so that long sequences cost little more than the causal half.

transformers makes no mask for it: windows have no padding, and padded rows bring a mask of
`padded_mask`. It knows no cache, so it is not for writing text.
"""

from __future__ import annotations

import torch
from transformers import AttentionInterface

NAME = "grouped_blocks"
BLOCK = 512  # rows of queries a product
BARRED = -1e30  # finite, so that a row of padding, which may attend to nothing, is no NaN


def grouped_blocks(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    """Causal attention of whole sequences, in the shape that transformers asks for: query [batch,
    heads, length, size], key and value [batch, key heads, length, size]."""
    assert query.shape[2] == key.shape[2], "whole sequences only"
    blocks = []
    for at in range(0, query.shape[2], BLOCK):
        part = query[:, :, at : at + BLOCK] * scaling
        end = at + part.shape[2]
        if attention_mask is None:
            allowed = torch.arange(end)[None] <= torch.arange(at, end)[:, None]
        else:
            allowed = attention_mask[:, :, at:end, :end]
        blocks.append(_block(part, key[:, :, :end], value[:, :, :end], allowed))
    return torch.cat(blocks, dim=1), None


def _block(query, key, value, allowed: torch.Tensor) -> torch.Tensor:
    """Attention of some rows of queries to the keys so far; returns [batch, rows, heads, size]."""
    batch, heads, rows, size = query.shape
    groups, end = key.shape[1], key.shape[2]
    key, value = (x.reshape(batch * groups, end, size) for x in (key, value))
    scores = torch.bmm(query.reshape(batch * groups, -1, size), key.transpose(1, 2))
    scores = scores.view(batch, heads, rows, end).float().masked_fill(~allowed, BARRED)
    weights = scores.softmax(-1).to(value.dtype).view(batch * groups, -1, end)
    return torch.bmm(weights, value).view(batch, heads, rows, size).transpose(1, 2)


def padded_mask(real: torch.Tensor) -> torch.Tensor:
    """Return who may attend to whom, [batch, 1, length, length], of rows [batch, length] that are
    True at real tokens."""
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    return causal & real[:, None, None, :].bool()


def install() -> str:
    """Register the function with transformers; return the name to give as `attn_implementation`."""
    AttentionInterface.register(NAME, grouped_blocks)
    return NAME
