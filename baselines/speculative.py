"""Speculative decoding with a draft model (Leviathan et al. 2023, arXiv 2211.17192).

With argmax or shared noise, a draft token is accepted if it equals the token that the target
chooses, so the output is exactly that of standard decoding.

Rejection sampling is an option, with several candidates per position (Miao et al. 2024, SpecInfer,
arXiv 2305.09781). A draft token x, sampled from the draft model's distribution q, is accepted with
probability min(1, p(x) / q(x)), where p is the target's distribution. After a rejection the next
candidate is tested against the residual max(p - q, 0), normalised; if all are rejected, a token is
sampled from the residual. The output has the target's distribution, but its tokens depend on the
drafts; with shared noise (`ouroboros.core.select`) they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from ouroboros.calls import Roll, Steps
from ouroboros.core.select import Sampler, TokenSelector, TopKRecorder, all_ids, argmax
from ouroboros.core.tree import TokenTree
from ouroboros.costs import Costs
from ouroboros.drafters.ouroboros import READ_AHEAD, costs_or_default
from ouroboros.drafters.pool import check_range
from ouroboros.drafters.step_times import LONG_READ
from ouroboros.engine.model import CachedModel


class Drawn(NamedTuple):
    """The `candidates` sampled after a node from `distribution`, [vocab], in order; may repeat."""

    candidates: list[int]
    distribution: torch.Tensor


class Rejection(TokenSelector):
    """Selector for the target that accepts draft tokens by rejection sampling.

    `sampler` provides warpers and seed; its shared noise is not used. Before each target call, the
    drafter stores the candidates after each node in `drawn`.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.temperature = sampler.temperature
        self.generator = torch.Generator().manual_seed(sampler.seed % (1 << 63))
        self.drawn: dict[int, Drawn] = {}

    def draw(self, distribution: torch.Tensor, count: int = 1) -> list[int]:
        """Return `count` independent samples from a distribution, [vocab]."""
        return torch.multinomial(
            distribution, count, replacement=True, generator=self.generator
        ).tolist()

    def distributions(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the warped probabilities of each row of logits, in float64 on the CPU."""
        return self.sampler.warped(all_ids(logits)).double().softmax(-1).cpu()

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        """Return the accepted or sampled token after each node of the accepted path, and -1 after
        other nodes, [len(tree.logit_nodes)]."""
        distributions = self.distributions(logits)
        chosen, node = [-1] * len(tree.logit_nodes), 0
        while True:
            token, accepted = self._follow(distributions[node], self.drawn.get(node))
            chosen[node] = token
            if not accepted or (node, token) not in tree.children:
                return chosen
            node = tree.children[node, token]

    def _follow(self, p: torch.Tensor, drawn: Drawn | None) -> tuple[int, bool]:
        """Return the token after a node, and whether it is an accepted candidate of `drawn` (None:
        no candidates). `p` is the target's distribution, [vocab]."""
        if drawn is None:
            return self.draw(p)[0], False
        width = len(drawn.distribution)
        for candidate in drawn.candidates:
            ratio = p[candidate] / drawn.distribution[candidate]
            if torch.rand((), generator=self.generator, dtype=torch.float64) < ratio:
                return candidate, True
            residual = p.clone()
            residual[:width] -= drawn.distribution
            residual.clamp_(min=0)
            if not residual.any():  # the distributions are equal up to rounding
                return candidate, True
            p = residual / residual.sum()
        return self.draw(p)[0], False


class Draws(TokenSelector):
    """Selector that samples `count` candidates from the draft model's distribution after each node
    and stores them in `drawn`. The first candidate continues the draft."""

    def __init__(self, rule: Rejection, count: int) -> None:
        self.rule = rule
        self.count = count
        self.drawn: list[Drawn] = []

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        distribution = self.rule.distributions(logits)[0]
        self.drawn.append(Drawn(self.rule.draw(distribution, self.count), distribution))
        return [self.drawn[-1].candidates[0]]


class Speculative:
    """Drafts a chain of up to `gamma` tokens with the draft model.

    The draft ends after the first token whose probability is below `confidence` (as in
    transformers' assisted generation). `verification` "shared" compares tokens sampled with shared
    noise. "rejection" uses rejection sampling, with `candidates` samples per position; the first
    one continues the draft. At temperature 0 both give greedy decoding. Raises `ValueError` for
    settings out of range.
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
        self.draft = draft
        self.gamma = gamma
        self.confidence = confidence
        self.verification = verification
        self.candidates = candidates
        self.draft_sequence = draft.new_sequence()
        self._choose: TokenSelector = argmax

    def rule(self, choose: TokenSelector) -> TokenSelector:
        """Return the selector for the decoding loop: `Rejection` with verification="rejection".

        Raises `ValueError` for a selector that is neither argmax nor a plain `Sampler`.
        """
        if self.verification == "shared" or choose is argmax:
            return choose
        if not isinstance(choose, Sampler):
            raise ValueError("verification=rejection supports no logits processors; use shared")
        return Rejection(choose)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt. The draft model uses the target's selector, so also the same noise."""
        self.draft_sequence, self._choose = self.draft.new_sequence(), choose

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the draft as a chain; with rejection sampling, other candidates are leaves."""
        draft, sequence, choose = self.draft, self.draft_sequence, self._choose
        fits = min(self.gamma, budget - 1, draft.room(sequence, tokens) + 1)
        roll = Roll(draft, sequence, tokens, fits, choose)
        if isinstance(choose, Rejection):
            return (yield from self._candidates(choose, roll))
        if self.confidence:
            recorder = TopKRecorder(choose, 1)
            drafted = yield from roll._replace(choose=recorder).in_requests(
                lambda: bool(recorder.last.shares[0, 0] < self.confidence)
            )
        elif fits > 0 and choose.context_free:
            drafted = yield roll
        else:
            drafted = yield from roll.in_requests()
        return TokenTree.chain(tokens[-1], drafted, source="draft")

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing; the draft model's cache rolls back at its next call."""

    def _candidates(self, rule: Rejection, roll: Roll) -> Steps[TokenTree]:
        """Return a chain of the first candidates, with the other candidates as leaves."""
        draws = Draws(rule, self.candidates)

        def unlikely() -> bool:
            last = draws.drawn[-1]
            return float(last.distribution[last.candidates[0]]) < self.confidence

        drafted = yield from roll._replace(choose=draws).in_requests(unlikely)
        tree = TokenTree.chain(roll.tokens[-1], drafted, source="draft")
        rule.drawn = dict(enumerate(draws.drawn))
        for node, drawn in rule.drawn.items():
            tree = tree.graft([[token] for token in drawn.candidates], at=node, source="draft")
        return tree


class AdaptiveSpeculative(Speculative):
    """Speculative decoding that chooses the draft length, 0 to `gamma`, before each step.

    It takes the length with the most expected tokens per predicted millisecond; length 0 is plain
    decoding. The expected tokens follow from the acceptance rate in the current prompt. The
    milliseconds follow from `costs` (None: shipped costs that suit the draft model's device) and
    the number of sequences that share the calls.

    The acceptance rate starts at PRIOR, which counts as WEIGHT draft tokens. Each step multiplies
    the weight of earlier draft tokens by MEMORY. So during steps without drafts the rate returns to
    PRIOR, and drafting is tried again.

    The length is also 0 while the draft model's prefill would take longer than drafting is expected
    to save on the remaining tokens. As many are expected to remain as were generated, plus
    READ_AHEAD, but at most the rest of `max_new`.
    """

    PRIOR, WEIGHT, MEMORY = 0.7, 4.0, 0.97

    def __init__(
        self, draft: CachedModel, *, gamma: int = 12, costs: str | Costs | None = None
    ) -> None:
        super().__init__(draft, gamma=gamma)
        self.costs = costs_or_default(costs, draft)
        self.most, self._batch_size = gamma, 1
        self._tables: dict[tuple[int, int], list[np.ndarray]] = {}

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt as `Speculative` does; reset the acceptance rate."""
        super().reset(choose)
        self._accepted = self._tried = 0.0
        self._prompt_len = 0

    def set_batch(self, size: int, number: int) -> None:
        """Set the number of sequences that share the next calls."""
        self._batch_size = size

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return a draft of the length with the most expected tokens per millisecond."""
        self._prompt_len = self._prompt_len or len(tokens)
        if not (length := self._best_length(tokens, budget)):
            return TokenTree.chain(tokens[-1], ())
        self.gamma = length
        return (yield from super().propose(tokens, budget))

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Count the accepted draft tokens, and those tried: the accepted and the first rejected."""
        accepted = len(path) - 1
        self._accepted = self.MEMORY * self._accepted + accepted
        self._tried = self.MEMORY * self._tried + min(accepted + 1, len(tree) - 1)

    def _best_length(self, tokens: Sequence[int], budget: int) -> int:
        """Return the length with the most expected tokens per millisecond, or 0 if the draft's
        prefill would not pay off."""
        context, size = len(tokens), self._batch_size
        at = max(128, 1 << (context - 1).bit_length())
        if (at, size) not in self._tables:
            pair = self.costs.target, self.costs.draft or self.costs.target
            sizes = range(1, size * (self.most + 1) + 1)
            calls = (surface.calls_ms(sizes, size * at) for surface in pair)
            self._tables[at, size] = [table[size - 1 :: size] for table in calls]
        target, draft = self._tables[at, size]
        rate = (self._accepted + self.PRIOR * self.WEIGHT) / (self._tried + self.WEIGHT)

        def token_ms(n: int) -> float:
            """Predict the milliseconds per token if each step drafts n tokens."""
            return (target[n] + n * draft[0]) / sum(rate**k for k in range(n + 1))

        best = min(range(min(self.most, budget - 1) + 1), key=token_ms)
        unread = self.draft.unread(self.draft_sequence, tokens)
        if best and unread > LONG_READ and self.costs.draft is not None:
            saved_ms = token_ms(0) - token_ms(best)
            to_come = min(budget, READ_AHEAD + context - self._prompt_len)
            if saved_ms * to_come < size * self.costs.draft_reading_ms(unread, context):
                return 0
        return best
