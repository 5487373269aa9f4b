"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192).

Under the shared-noise sampler (or argmax) a draft token is accepted if it *is* the target's token,
so every token equals plain decoding's. Classic rejection sampling, which preserves the distribution
but not individual tokens, is an option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from ouroboros.baselines.rejection import Drawn, Rejection

from ouroboros.decode import Roll, Steps
from ouroboros.drafters.drafting import DraftLoop
from ouroboros.drafters.pool import check_range
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import Sampler, TokenSelector, TopKRecorder, argmax
from ouroboros.tree import TokenTree


class Speculative:
    """Draft a chain of up to `gamma` tokens with the draft model.

    With `confidence` above 0 the draft ends after the first token to which the draft model gives
    less than this probability (as in transformers' assisted generation). `verification` "shared"
    compares tokens sampled with shared noise; "rejection" uses rejection sampling when the loop
    samples, with `candidates` tokens drawn at each position, the first of which the draft
    continues. Greedy decoding is the same under both. Raises `ValueError` for settings out of
    range.
    """

    def __init__(
        self,
        draft: CachedModel,
        *,
        gamma: int,
        confidence: float = 0.0,
        verification: Literal["shared", "rejection"] = "shared",
        candidates: int = 1,
    ) -> None:
        check_range(1, gamma=gamma, candidates=candidates)
        check_range(0, 1, confidence=confidence)
        if verification not in ("shared", "rejection"):
            raise ValueError(f"verification {verification!r} is not one of shared, rejection")
        if candidates > 1 and verification == "shared":
            raise ValueError(
                f"candidates={candidates} needs verification=rejection: with shared noise the "
                "draft model has one sample at each position"
            )
        self.draft: CachedModel | None = draft
        self.gamma = gamma
        self.confidence = confidence
        self.verification = verification
        self.candidates = candidates
        self._loop = DraftLoop(draft)

    @property
    def draft_sequence(self) -> CachedSequence:
        """The sequence on which the draft model is called."""
        return self._loop.sequence

    def rule(self, choose: TokenSelector) -> TokenSelector:
        """Return the selector that the loop shall use, `Rejection` with verification="rejection".

        Raises `ValueError` for a selector that is neither argmax nor a plain `Sampler`.
        """
        if self.verification == "shared" or choose is argmax:
            return choose
        if not isinstance(choose, Sampler):
            raise ValueError("verification=rejection knows no logits processors; use shared")
        return Rejection(choose)

    def reset(self, choose: TokenSelector) -> None:
        """Draft by the same choice (and noise) as the target."""
        self._loop.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the draft as a chain (with leaves, where there are more candidates)."""
        loop, choose = self._loop, self._loop.choose
        room = min(self.gamma, budget - 1)
        if isinstance(choose, Rejection):
            return (yield from self._candidates(choose, tokens, room))
        fits = min(room, loop.model.room(loop.sequence, tokens) + 1)
        if fits > 0 and not self.confidence and choose.context_free:
            drafted = yield Roll(loop.model, loop.sequence, tokens, fits, choose)
            return TokenTree.chain(tokens[-1], drafted, source="draft")
        recorder = TopKRecorder(choose, 2)
        drafting = loop.begin(tokens, room, recorder if self.confidence else choose)  # type: ignore[arg-type]
        while drafting.left > 0:
            yield from drafting.step()
            if self.confidence and recorder.last.shares[0, 0] < self.confidence:
                break
        return TokenTree.chain(tokens[-1], loop.drafted, source="draft")

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn: the draft model rolls back by itself."""

    def _candidates(self, rule: Rejection, tokens: Sequence[int], room: int) -> Steps[TokenTree]:
        """Draft a chain of the first candidates, with the others as its leaves."""
        draws = Draws(rule, self.candidates)
        drafting = self._loop.begin(tokens, room, draws)
        while drafting.left > 0:
            yield from drafting.step()
            last = draws.drawn[-1]
            if float(last.distribution[last.candidates[0]]) < self.confidence:
                break
        tree = TokenTree.chain(tokens[-1], self._loop.drafted, source="draft")
        rule.drawn = dict(enumerate(draws.drawn))
        for node, drawn in rule.drawn.items():
            tree = tree.graft([[token] for token in drawn.candidates], at=node, source="draft")
        return tree


class Draws(TokenSelector):
    """Sample candidates from the draft model's own distribution, and keep them in `drawn`."""

    def __init__(self, rule: Rejection, count: int) -> None:
        self.rule = rule
        self.count = count
        self.drawn: list[Drawn] = []

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        distribution = self.rule.distributions(logits)[0]
        self.drawn.append(Drawn(self.rule.draw(distribution, self.count), distribution))
        return [self.drawn[-1].candidates[0]]
