"""Classic rejection sampling of drafts (Leviathan et al. 2023, arXiv 2211.17192), several
candidates a position (Miao et al. 2024, SpecInfer, arXiv 2305.09781).

A drafted token x, drawn from the draft's law q, is kept with probability min(1, p(x) / q(x)); after
a rejection the next candidate faces the rest max(p - q, 0), normalised, and what is left at the end
is sampled. The law of the text is the target's own, but its tokens depend on the drafts: there is
no token-for-token equality to test, as there is with shared noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ouroboros.select import Ranked, Sampler, TokenSelector
from ouroboros.tree import TokenTree


@dataclass(frozen=True)
class Drawn:
    """The candidates drawn after a node, in order, repeats included, and their law [vocab]."""

    candidates: list[int]
    law: torch.Tensor


class Rejection(TokenSelector):
    """A choice for the target that accepts drafted tokens by rejection sampling.

    `sampler` gives warpers and seed; its shared noise is not used. `drawn[node]` must hold what was
    drawn after each node of the tree that is scored next (the drafter fills it in). `overlap` sums
    1 - TV(p, q) over the nodes that were tested and `tested` counts them: their ratio is the
    expected share of first candidates that are accepted.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.temperature = sampler.temperature
        self.generator = torch.Generator().manual_seed(sampler.seed % (1 << 63))
        self.drawn: dict[int, Drawn] = {}
        self.overlap = 0.0
        self.tested = 0

    def draw(self, law: torch.Tensor, count: int = 1) -> list[int]:
        """Return `count` independent samples of a law, [vocab]."""
        return torch.multinomial(law, count, replacement=True, generator=self.generator).tolist()

    def laws(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the warped probabilities of rows of logits, float64 on the CPU."""
        return self.sampler.warped(logits).double().softmax(-1).cpu()

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        """Return the accepted or sampled token after each node of the path, -1 elsewhere."""
        laws = self.laws(logits)
        child = {(parent, tree.tokens[node]): node for node, parent in enumerate(tree.parents)}
        chosen, node = [-1] * len(tree.logit_nodes), 0
        while True:
            token, accepted = self._follow(laws[node], self.drawn.get(node))
            chosen[node] = token
            if not accepted or (node, token) not in child:
                return chosen
            node = child[node, token]

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        raise ValueError("rejection sampling has no runner-up; use shared noise with this drafter")

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        raise ValueError("rejection sampling is exact in law only: its choice has no scores")

    def _follow(self, law: torch.Tensor, drawn: Drawn | None) -> tuple[int, bool]:
        """Return the token after a node whose law is `law`, and whether it was drafted."""
        if drawn is None:
            return self.draw(law)[0], False
        width = len(drawn.law)
        self.overlap += float(torch.minimum(law[:width], drawn.law).sum())
        self.tested += 1
        for candidate in drawn.candidates:
            ratio = law[candidate] / drawn.law[candidate]
            if torch.rand((), generator=self.generator, dtype=torch.float64) < ratio:
                return candidate, True
            rest = law.clone()
            rest[:width] -= drawn.law
            rest.clamp_(min=0)
            if not rest.any():  # the laws are equal but for rounding
                return candidate, True
            law = rest / rest.sum()
        return self.draw(law)[0], False
