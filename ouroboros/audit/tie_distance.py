"""By how much must logits move for a choice to fall on another token?

Distance to a tie, under any rule of choice: temperature, cuts, noise and processors included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

HIGHEST = 1e6
RIVALS = 8


def min_logit_perturbation(
    logits: torch.Tensor, token: int, scores: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return the least size found of a move of `logits` [vocab], each entry by that much at most,
    under which the argmax of `scores(moved)` is `token`; 0.0 if it is already.

    An upper bound, since a few directions are tried: the token alone raised, and the moves by which
    a cut (top-k, top-p, min-p) takes it in or leaves a rival out.
    """
    winner = int(scores(logits).argmax())
    if winner == token:
        return 0.0
    return min(_least(logits, way, token, scores) for way in _ways(logits, token, winner))


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


def _ways(logits: torch.Tensor, token: int, winner: int) -> Iterator[torch.Tensor]:
    """Yield directions, entries of size 1, that favour a token against the winner and others."""
    up = torch.full_like(logits, -1.0)
    up[token] = 1.0
    yield up
    yield torch.where(logits > logits[token], -1.0, 1.0).to(logits)
    for rival in _rivals(logits, token, winner):
        alone = torch.ones_like(logits)
        alone[rival] = -1.0
        yield alone
        lowered = torch.where(logits > logits[rival], 1.0, -1.0).to(logits)
        lowered[token] = 1.0
        yield lowered


def _rivals(logits: torch.Tensor, token: int, winner: int) -> list[int]:
    """Return the winner, the likeliest ids and those next above the token, each once."""
    likely = logits.topk(min(RIVALS, len(logits))).indices.tolist()
    above = torch.where(logits >= logits[token], logits, torch.inf)
    near = above.topk(min(RIVALS, len(logits)), largest=False).indices.tolist()
    return [rival for rival in dict.fromkeys([winner, *likely, *near]) if rival != token]
