"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192).

Under the shared-noise sampler (or argmax) a draft token is accepted if it *is* the target's token,
so every token equals plain decoding's. Classic rejection sampling, which preserves the distribution
but not individual tokens, is an option.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from ouroboros.baselines.rejection import Drawn, Rejection

from ouroboros.decode import RootOnly, extend
from ouroboros.drafters.drafting import Scratch
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import Sampler, TokenSelector, TopKRecorder, argmax
from ouroboros.trace import StepRecord
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
        if gamma < 1 or candidates < 1:
            raise ValueError(f"gamma {gamma} and candidates {candidates} must be at least 1")
        if verification not in ("shared", "rejection"):
            raise ValueError(f"verification {verification!r} is not one of shared, rejection")
        if candidates > 1 and verification == "shared":
            raise ValueError(
                f"candidates={candidates} needs verification=rejection: with shared noise the "
                "draft model has one sample at each position"
            )
        self.draft: CachedModel | None = draft
        self.model = draft
        self.draft_sequence: CachedSequence | None = None
        self.gamma = gamma
        self.confidence = confidence
        self.verification = verification
        self.candidates = candidates
        self._plain = RootOnly()
        self._scratch = Scratch()
        self._choose: TokenSelector = argmax

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
        self._choose = choose
        self.draft_sequence = self.model.new_sequence()
        self._scratch.reset()

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the draft as a chain (with leaves, where there are more candidates)."""
        if isinstance(self._choose, Rejection):
            return self._candidates(self._choose, tokens, budget)
        room = min(self.gamma, budget - 1, self.model.max_len - len(tokens) + 1)
        if room > 0 and self.draft_sequence and not self.confidence and self._choose.context_free:
            drafted = self.model.roll(self.draft_sequence, tokens, room, self._choose)
            return TokenTree.chain(tokens[-1], drafted, source="draft")
        sequence, recorder = self._scratch.at(tokens), TopKRecorder(self._choose, 2)
        choose: TokenSelector = recorder if self.confidence > 0 else self._choose
        for _ in self._extend(sequence, room, choose):
            if self.confidence > 0 and recorder.last.shares[0, 0] < self.confidence:
                break
        return TokenTree.chain(tokens[-1], sequence[len(tokens) :], source="draft")

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn: the draft model rolls back by itself."""

    def _extend(self, text: list[int], room: int, choose: TokenSelector) -> Iterator[StepRecord]:
        """Draft token by token, appending to `text`."""
        return extend(
            self.model, self._plain, text, room, sequence=self.draft_sequence, choose=choose
        )

    def _candidates(self, rule: Rejection, tokens: Sequence[int], budget: int) -> TokenTree:
        """Draft a chain of the first candidates, with the others as its leaves."""
        draws = Draws(rule, self.candidates)
        sequence, room = self._scratch.at(tokens), min(self.gamma, budget - 1)
        for _ in self._extend(sequence, room, draws):
            last = draws.drawn[-1]
            if float(last.distribution[last.candidates[0]]) < self.confidence:
                break
        tree = TokenTree.chain(tokens[-1], sequence[len(tokens) :], source="draft")
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
