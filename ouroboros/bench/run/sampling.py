"""How a run chooses tokens, and the seed of each of its samples.

Invariant: the seed depends on run seed, example and sample number alone, so every decoder, a
resumed run and a replay draw the same tokens.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from transformers import RepetitionPenaltyLogitsProcessor

from ouroboros.processors import processed
from ouroboros.select import Sampler, TokenSelector, argmax


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy decoding; `seed` is the run's."""

    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} must be 0 (greedy) or above")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty {self.repetition_penalty} must be above 0")

    def choose(self, example: str, sample: int, *, vocab: int) -> TokenSelector:
        """Return the chooser of one example's sample number, the same for every decoder; `vocab` is
        the target's."""
        choose: TokenSelector = argmax
        if self.temperature:
            choose = Sampler(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=derive_seed(self.seed, example, sample),
            )
        if self.repetition_penalty == 1.0:
            return choose
        penalty = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
        return processed(choose, [penalty], vocab=vocab)


def derive_seed(seed: int, example: str, sample: int) -> int:
    """Return a 62-bit seed that depends on run seed, example and sample number."""
    digest = hashlib.sha256(f"{seed}\0{example}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 2
