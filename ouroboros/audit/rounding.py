"""By how much a run's arithmetic moves logits: the tolerance of an audit, measured, not chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

LIKELY = 32  # noise is measured on so many of a position's likeliest tokens
USUAL = 0.95  # and is at least what this share of the positions stays below


@dataclass(frozen=True)
class Noise:
    """By how much the run's arithmetic moves logits, position by position, [positions].

    At a position: the largest difference to float64 over the likeliest tokens, a common offset of
    the row left out, since it changes no choice.
    """

    by_position: torch.Tensor

    @property
    def usual(self) -> float:
        """What all but a twentieth of the positions stay below."""
        return float(self.by_position.quantile(USUAL)) if len(self.by_position) else 0.0

    def at(self, index: int) -> float:
        """The noise to allow for at a position: its own, and at least the usual one."""
        own = float(self.by_position[index]) if index < len(self.by_position) else 0.0
        return max(own, self.usual)

    @classmethod
    def between(cls, found: torch.Tensor, exact: torch.Tensor) -> Noise:
        """Measure two scorings of one text, each [positions, vocab]."""
        likely = exact.topk(min(LIKELY, exact.shape[-1]), dim=-1).indices
        moved = found.gather(-1, likely) - exact.gather(-1, likely)
        centre = moved.median(dim=-1, keepdim=True).values
        return cls((moved - centre).abs().amax(dim=-1).cpu())
