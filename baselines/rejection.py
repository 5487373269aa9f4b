"""Rejection sampling of drafts (Leviathan et al. 2023, arXiv 2211.17192), with several candidates
per position (Miao et al. 2024, SpecInfer, arXiv 2305.09781).

A draft token x, sampled from the draft model's distribution q, is accepted with probability
min(1, p(x) / q(x)), where p is the target's distribution. After a rejection the next candidate is
tested against the residual max(p - q, 0), normalised; if all are rejected, a token is sampled from
the residual. The output has the target's distribution, but its tokens depend on the drafts; with
shared noise (`ouroboros.select`) they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ouroboros.select import Sampler, TokenSelector
from ouroboros.tree import TokenTree


@dataclass(frozen=True)
class Drawn:
    """The `candidates` sampled after a node from `distribution`, [vocab], in order; may repeat."""

    candidates: list[int]
    distribution: torch.Tensor


class Rejection(TokenSelector):
    """Selector for the target that accepts draft tokens by rejection sampling.

    `sampler` provides warpers and seed; its shared noise is not used. Before each target call, the
    drafter stores the candidates after each node in `drawn`. `overlap` / `tested` is the expected
    acceptance rate of first candidates: the mean over tested nodes of 1 - total variation (p, q).
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.temperature = sampler.temperature
        self.generator = torch.Generator().manual_seed(sampler.seed % (1 << 63))
        self.drawn: dict[int, Drawn] = {}
        self.overlap = 0.0
        self.tested = 0

    def draw(self, distribution: torch.Tensor, count: int = 1) -> list[int]:
        """Return `count` independent samples from a distribution, [vocab]."""
        return torch.multinomial(
            distribution, count, replacement=True, generator=self.generator
        ).tolist()

    def distributions(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the warped probabilities of each row of logits, in float64 on the CPU."""
        return self.sampler.warped(logits).double().softmax(-1).cpu()

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        """Return the accepted or sampled token after each node of the accepted path, and -1 after
        other nodes, [len(tree.logit_nodes)]."""
        distributions = self.distributions(logits)
        child = {(parent, tree.tokens[node]): node for node, parent in enumerate(tree.parents)}
        chosen, node = [-1] * len(tree.logit_nodes), 0
        while True:
            token, accepted = self._follow(distributions[node], self.drawn.get(node))
            chosen[node] = token
            if not accepted or (node, token) not in child:
                return chosen
            node = child[node, token]

    def _follow(self, p: torch.Tensor, drawn: Drawn | None) -> tuple[int, bool]:
        """Return (token, accepted) after a node: whether the token is one of the candidates in
        `drawn` (None: there are none). `p` is the target's distribution, [vocab]."""
        if drawn is None:
            return self.draw(p)[0], False
        width = len(drawn.distribution)
        self.overlap += float(torch.minimum(p[:width], drawn.distribution).sum())
        self.tested += 1
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
