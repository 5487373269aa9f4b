"""What the exact kernels return, computed by torch row by row."""

from __future__ import annotations

import torch


@torch.library.custom_op("ouroboros::attend_row_by_row", mutates_args=())  # so that it is captured
def attend_row_by_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, scale: float
) -> torch.Tensor:
    """What the attention kernel returns."""
    _, heads, n, width = query.shape
    out = query.new_zeros(1, n, heads, width)
    for row, (slab, length, straight, first, *tails) in enumerate(table[0, 0].tolist()):
        slots = [*range(min(straight, length)), *tails[: max(0, length - straight)]][first:]
        if slots:
            keys, values = (
                pool[0, :, torch.tensor(slots) + slab]
                .float()
                .repeat_interleave(heads // len(pool[0]), 0)
                for pool in (key, value)
            )
            weights = torch.softmax(keys @ query[0, :, row, :, None].float() * scale, 1)
            out[0, row] = (weights.mT @ values)[:, 0]
    return out


@attend_row_by_row.register_fake
def _(query, key, value, table, scale):
    return torch.empty_like(query.transpose(1, 2))


@torch.library.custom_op("ouroboros::multiply_row_by_row", mutates_args=())
def multiply_row_by_row(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the exact product returns."""
    linear = torch.nn.functional.linear
    rows = torch.stack([linear(row, weight, bias) for row in x.flatten(0, -2)])
    return rows.view(*x.shape[:-1], -1)


@multiply_row_by_row.register_fake
def _(x, weight, scale=None, bias=None):
    return x.new_empty(*x.shape[:-1], len(weight))
