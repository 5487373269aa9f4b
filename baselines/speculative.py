"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192).

Under the shared-noise sampler (or argmax) a draft token is kept if it *is* the target's choice,
which is exact token for token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ouroboros.choose import Choose, argmax
from ouroboros.decode import RootOnly, extend
from ouroboros.drafter import Watched
from ouroboros.model import CachedModel
from ouroboros.tree import TokenTree


class Speculative:
    """A chain of up to `gamma` tokens drafted one by one by the small model.

    With `confidence` above 0 the draft ends early, after the first token to which the draft model
    itself gives less than this probability (as transformers' assisted generation does).
    """

    def __init__(self, draft: CachedModel, *, gamma: int, confidence: float = 0.0) -> None:
        if gamma < 1:
            raise ValueError(f"gamma is {gamma}; it must be at least 1")
        self.draft: CachedModel | None = draft
        self.model = draft
        self.gamma = gamma
        self.confidence = confidence
        self._plain = RootOnly()
        self._choose: Choose = argmax

    def reset(self, choose: Choose) -> None:
        """Draft by the same choice (and noise) as the target."""
        self._choose = choose

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the draft as a chain."""
        sequence, watch = list(tokens), Watched(self._choose)
        room = min(self.gamma, budget - 1)
        choose: Choose = watch if self.confidence > 0 else self._choose
        for _ in extend(self.model, self._plain, sequence, room, choose=choose):
            if self.confidence > 0 and watch.ranks[-1].share < self.confidence:
                break
        return TokenTree.chain(tokens[-1], sequence[len(tokens) :], source="draft")

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn: the draft model rolls back by itself."""
