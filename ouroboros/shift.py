"""By how much must logits move for a choice to fall on another token?

Distance to a tie, under any rule of choice: temperature, cuts, noise and processors included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

HIGHEST = 1e6
RIVALS = 8


def least_shift(
    logits: torch.Tensor, token: int, scores: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return the least size found of a move of `logits` [vocab], each entry by that much at most,
    under which the argmax of `scores(moved)` is `token`; 0.0 if it is already.

    An upper bound, since a few directions are tried: the token alone raised, and the moves by which
    a cut (top-k, top-p, min-p) takes it in or leaves a rival out.
    """
    if int(scores(logits).argmax()) == token:
        return 0.0
    return min(_least(logits, way, token, scores) for way in _ways(logits, token))


def _least(logits: torch.Tensor, way: torch.Tensor, token: int, scores) -> float:
    """Return the least multiple of `way`, to one part in a thousand, that makes `token` win."""

    def wins(size: float) -> bool:
        return int(scores(logits + size * way).argmax()) == token

    low, high = 1e-12, HIGHEST
    if not wins(high):
        return HIGHEST
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


def _ways(logits: torch.Tensor, token: int) -> Iterator[torch.Tensor]:
    """Yield directions, entries of size 1, that favour a token."""
    up = torch.full_like(logits, -1.0)
    up[token] = 1.0
    yield up
    yield torch.where(logits > logits[token], -1.0, 1.0).to(logits)
    for rival in logits.topk(min(RIVALS, len(logits))).indices.tolist():
        if rival != token:
            lowered = torch.where(logits > logits[rival], 1.0, -1.0).to(logits)
            lowered[token] = 1.0
            yield lowered
