"""How far rounding moves logits, and how far they must move for another token to win.

The first is an audit's tolerance, measured and not chosen; the second is a completion's distance to
a tie, under any rule of choice: temperature, top-k and other filters, noise, logits processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

LIKELY = 32  # noise is measured on this many of a position's most probable tokens
USUAL = 0.95  # share of the positions whose noise is at most the usual one
HIGHEST = 1e6
RIVALS = 8


@dataclass(frozen=True)
class Noise:
    """By how much a run's arithmetic moves logits, for each position, [positions].

    The largest difference to float64 over a position's most probable tokens; an offset common to
    the row is left out, since it changes no choice.
    """

    by_position: torch.Tensor

    @property
    def usual(self) -> float:
        """The noise that 95 % of the positions stay below."""
        return float(self.by_position.quantile(USUAL)) if len(self.by_position) else 0.0

    def at(self, index: int) -> float:
        """Return the noise to allow for at a position: its own, and at least the usual one."""
        own = float(self.by_position[index]) if index < len(self.by_position) else 0.0
        return max(own, self.usual)

    @classmethod
    def between(cls, logits: torch.Tensor, exact: torch.Tensor) -> Noise:
        """Measure two scorings of one text, each [positions, vocab]."""
        likely = exact.topk(min(LIKELY, exact.shape[-1]), dim=-1).indices
        moved = logits.gather(-1, likely) - exact.gather(-1, likely)
        centre = moved.median(dim=-1, keepdim=True).values
        return cls((moved - centre).abs().amax(dim=-1).cpu())


def min_logit_perturbation(
    logits: torch.Tensor, token: int, scores: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return the smallest perturbation of `logits` [vocab] found under which `token` is chosen.

    The choice is the argmax of `scores(perturbed logits)`; each logit moves by at most the returned
    size, 0.0 if `token` is the choice already. An upper bound, since a few directions are tried:
    the token alone raised, and the moves by which a filter (top-k, top-p, min-p) takes it in or
    leaves a rival out. Exact to one part in a thousand for the best direction.
    """
    winner = int(scores(logits).argmax())
    if winner == token:
        return 0.0
    best = HIGHEST
    for direction in _directions(logits, token, winner):

        def wins(size: float, direction: torch.Tensor = direction) -> bool:
            return int(scores(logits + size * direction).argmax()) == token

        low, high = 1e-12, HIGHEST
        if wins(high):
            while high > 1.001 * low:
                middle = (low * high) ** 0.5
                low, high = (low, middle) if wins(middle) else (middle, high)
            best = min(best, high)
    return best


def _directions(logits: torch.Tensor, token: int, winner: int) -> Iterator[torch.Tensor]:
    """Yield directions, entries of size 1, that favour a token against the winner and others."""
    up = torch.full_like(logits, -1.0)
    up[token] = 1.0
    yield up
    yield torch.where(logits > logits[token], -1.0, 1.0).to(logits)
    likely = logits.topk(min(RIVALS, len(logits))).indices.tolist()
    above = torch.where(logits >= logits[token], logits, torch.inf)
    nearest = above.topk(min(RIVALS, len(logits)), largest=False).indices.tolist()
    for rival in dict.fromkeys([winner, *likely, *nearest]):
        if rival == token:
            continue
        alone = torch.ones_like(logits)
        alone[rival] = -1.0
        yield alone
        lowered = torch.where(logits > logits[rival], 1.0, -1.0).to(logits)
        lowered[token] = 1.0
        yield lowered
