"""Ouroboros as it is now: one tree, grown where a token is worth its cost, from all sources.

Phrases of the text and recycled predictions grow a tree; the draft model scores many of its nodes
in one call where that pays (phrases speed up drafting), and the tree goes on below what the draft
says (phrases lengthen the draft). What the target says at nodes that are not kept comes back as
phrases (verification makes phrases), and all of them may outlive the prompt.

Invariant: estimates only ever change *what is proposed*; `decode` alone decides what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ouroboros.choose import Choose, Sampler, argmax
from ouroboros.costs.named import named
from ouroboros.costs.surface import Costs, Surface
from ouroboros.drafters.growth.growth import Growth, Shape
from ouroboros.drafters.growth.state import RANKS, SIZES
from ouroboros.drafters.growth.weights import Weights
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree


class Grown:
    def __init__(
        self,
        draft: CachedModel | None,
        *,
        shape: Shape = Shape(),
        costs: str | Costs = "steep",
        weights: Weights | None = None,
        pool_state="cold",
    ) -> None:
        self.draft = draft
        self.pool_state = pool_state
        self.growth = Growth(weights or Weights.load(), shape)
        self.reads_rejected = shape.recycle
        self.costs = named(costs) if isinstance(costs, str) else costs
        self._choose: Choose = argmax
        self._context = 0
        self._proposed: TokenTree | None = None

    def reset(self, choose: Choose) -> None:
        self._choose = choose
        self._context = 0
        self._proposed = None
        if self.pool_state == "cold":
            self.growth.forget()
        inner = getattr(choose, "choose", choose)
        sampler = inner if isinstance(inner, Sampler) else None
        self.growth.start(
            vocab=self.draft.width if self.draft else 0,
            seed=sampler.seed if sampler else None,
            sampled=sampler is not None,
        )

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        self._price(len(tokens))
        draft = self.draft
        reach = draft.max_len - len(tokens) if draft else -1
        count = self.growth.begin(tokens, budget - 1, reach)
        while count:
            assert draft is not None
            nodes, asked = self.growth.asked()
            tree = TokenTree(nodes.tokens, nodes.parents)
            logits = draft.score(tokens, tree)
            draft.scored += asked
            count = self.growth.scored(*ranked(self._choose, logits, tokens, tree, asked))
        made = self.growth.proposal()
        self._proposed = TokenTree(made.tokens, made.parents, source=made.source)
        return self._proposed

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        if tree is not self._proposed:
            return
        kept = self.growth.fed_path(path)
        if kept and self.draft is not None:
            self.draft.accept(kept)
        self.growth.learn(chosen, path)

    def _price(self, context: int) -> None:
        """Set what calls cost on a sequence of that length, to the next power of two."""
        if context <= self._context:
            return
        self._context = 1 << max(7, (context - 1).bit_length())
        draft = [0.0] if self.costs.draft is None else table(self.costs.draft, self._context)
        self.growth.set_costs(table(self.costs.target, self._context), draft)


def table(surface: Surface, context: float) -> list[float]:
    """Return what calls of 1, 2, ... nodes cost, as far as that was measured."""
    context = min(context, max(surface.ms))
    most = min(max(max(row) for row in surface.ms.values()), SIZES - 1)
    return [surface.call_ms(nodes, context) for nodes in range(1, int(most) + 1)]


def ranked(choose, logits, tokens, tree, asked):
    scores = choose.scores(logits, tokens, tree)[-asked:]
    rows = logits if not isinstance(choose, Sampler) else choose.warped(logits)
    shares = rows[-asked:].double().softmax(-1)
    top = scores.topk(min(RANKS, scores.shape[-1]), dim=-1)
    return top.indices.numpy(), top.values.double().numpy(), shares.gather(-1, top.indices).numpy()
