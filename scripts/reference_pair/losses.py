"""The two losses of training, from hidden states: next tokens, and a teacher's law.

At a hidden size of 384 a vocabulary of 8192 makes the logits the largest thing of a step. So the
product with the embedding, the loss and its gradient are made together, a few hundred positions at
a time, and no more logits than these ever lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd.function import once_differentiable

ROWS = 256  # positions a chunk: its logits stay in a core's cache


def next_token_loss(
    hidden: torch.Tensor, embedding: torch.Tensor, targets: torch.Tensor, *, compiled: bool = False
) -> torch.Tensor:
    """Mean cross-entropy in nats. hidden [positions, size], embedding [vocabulary, size]."""
    slope = torch.compile(_by_ids, dynamic=False) if compiled else _by_ids
    return _ChunkedLoss.apply(hidden, embedding, slope, lambda rows: targets[rows])


def divergence_loss(
    hidden: torch.Tensor,
    embedding: torch.Tensor,
    teacher_hidden: torch.Tensor,
    teacher_embedding: torch.Tensor,
    *,
    compiled: bool = False,
) -> torch.Tensor:
    """Mean forward Kullback-Leibler divergence in nats from a teacher's full distribution."""
    teacher = teacher_embedding.detach().to(torch.bfloat16).t()
    slope = torch.compile(_by_law, dynamic=False) if compiled else _by_law
    return _ChunkedLoss.apply(
        hidden, embedding, slope, lambda rows: teacher_hidden[rows].to(torch.bfloat16) @ teacher
    )


class _ChunkedLoss(torch.autograd.Function):
    """Mean loss of all positions, its gradient made in the forward pass.

    `slope(logits, wanted(rows))` gives the summed loss of a slice of positions and its gradient by
    their logits.
    """

    @staticmethod
    def forward(ctx, hidden, embedding, slope: Callable, wanted: Callable):
        weight = embedding.to(torch.bfloat16)
        small = hidden.to(torch.bfloat16)
        count = len(hidden)
        by_hidden = torch.empty_like(small)
        by_weight = torch.zeros_like(weight, dtype=torch.float32)
        total = torch.zeros((), device=hidden.device)
        for at in range(0, count, ROWS):
            rows = slice(at, min(at + ROWS, count))
            loss, by_logits = slope(small[rows] @ weight.t(), wanted(rows))
            total += loss
            by_hidden[rows] = by_logits @ weight
            by_weight += by_logits.t() @ small[rows]
        ctx.save_for_backward(by_hidden / count, by_weight / count)
        ctx.dtype = hidden.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx, scale):
        by_hidden, by_weight = ctx.saved_tensors
        return (by_hidden * scale).to(ctx.dtype), by_weight * scale, None, None


def _by_ids(logits: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy, summed, and its gradient in bf16; logits [rows, vocabulary], ids [rows]."""
    given = logits.float().log_softmax(-1)
    loss = -given.gather(-1, ids[:, None]).sum()
    right = torch.arange(logits.shape[-1], device=logits.device)[None] == ids[:, None]
    return loss, (given.exp() - right.float()).to(torch.bfloat16)


def _by_law(logits: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence from the law of `wanted` logits, summed, and its gradient in bf16."""
    given, law = logits.float().log_softmax(-1), wanted.float().log_softmax(-1)
    chance = law.exp()
    return (chance * (law - given)).sum(), (given.exp() - chance).to(torch.bfloat16)
