"""Ouroboros as it is now: one tree, grown where a token is worth its cost, from all sources.

Phrases of the text and recycled predictions grow a tree; the draft model scores many of its nodes
in one call where that pays (phrases speed up drafting), and the tree goes on below what the draft
says (phrases lengthen the draft). What the target says at nodes that are not kept comes back as
phrases (verification makes phrases), and all of them may outlive the prompt.

Invariant: estimates only ever change *what is proposed*; `decode` alone decides what is kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ouroboros.costs.named import named
from ouroboros.costs.surface import Costs, Surface
from ouroboros.drafters.draft_tree.growth import Growth, Shape
from ouroboros.drafters.draft_tree.ready import warm_up_jit
from ouroboros.drafters.draft_tree.remembered import DrafterMemory
from ouroboros.drafters.draft_tree.state import RANKS, SIZES
from ouroboros.drafters.draft_tree.weights import Weights
from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.select import Ranked, TokenSelector, argmax
from ouroboros.tree import TokenTree

LEAST_CONTEXT = 128  # costs are looked up at this context, and at each doubling


class Grown:
    """Proposes trees of a `Growth`; the arguments are those of `Ouroboros`.

    The draft is first called where that first pays: until then it has read nothing. With
    `pool_state` "task" texts, recycled predictions and learned rates are kept from prompt to
    prompt, with "loaded" each prompt starts from the pool given, with "cold" from nothing.

    A long prompt is read before anything is proposed: the first token comes as early as plain
    decoding's, and the tree that follows knows it.
    """

    def __init__(
        self,
        draft: CachedModel | None,
        *,
        shape: Shape | None = None,
        costs: str | Costs | None = None,
        weights: Weights | None = None,
        pool_state: str = "cold",
        pool: DrafterMemory | None = None,
    ) -> None:
        warm_up_jit()
        self.draft = draft
        self.pool_state = pool_state
        self.growth = Growth(weights or Weights.load(), shape or Shape())
        self.reads_rejected = self.growth.shape.recycle
        self.costs = costs if isinstance(costs, Costs) else named(costs or suiting(draft))
        self._loaded = pool if pool_state == "loaded" else None
        if pool is not None:
            self.restore(pool)
        self._choose: TokenSelector = argmax
        self._priced = 0
        self._prices: dict[int, tuple[list[float], list[float]]] = {}
        self._proposed: TokenTree | None = None
        self._unread = True

    @property
    def pool(self) -> DrafterMemory:
        """What outlives a prompt."""
        return self.growth.remembered()

    def restore(self, pool: DrafterMemory) -> None:
        """Remember exactly what a pool holds."""
        self.growth.restore(pool)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt; what is remembered is emptied, kept or restored as `pool_state` says."""
        if self.pool_state != "task":
            self.growth.forget()
        if self._loaded is not None:
            self.restore(self._loaded)
        self._choose = choose
        self._priced = 0
        self._proposed = None
        self._unread = True
        self.growth.start(seed=choose.noise_seed, temperature=choose.temperature)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the tree that pays best by the estimates, no deeper than the budget allows."""
        unread, self._unread = self._unread, False
        if unread and read_alone(tokens):
            return TokenTree.chain(tokens[-1], ())
        self._price(len(tokens))
        growth, draft = self.growth, self.draft
        reach = draft.max_len - len(tokens) if draft is not None else -1
        count = growth.begin(tokens, budget - 1, reach)
        while count:
            assert draft is not None
            nodes = growth.asked()
            size = len(nodes.tokens)
            asked = range(size - count, size)
            tree = TokenTree.made(nodes.tokens, nodes.parents, nodes.depths, logit_nodes=asked)
            count = growth.scored(*ranking(draft, tokens, tree, self._choose))
        made = growth.proposal()
        self._proposed = TokenTree.made(
            made.tokens,
            made.parents,
            made.depths,
            source=made.source,
            probability=made.probability,
        )
        return self._proposed

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from a tree as it was proposed; the draft keeps what it read of the path."""
        if tree is not self._proposed:
            return
        read = self.growth.read_of(path)
        if read and self.draft is not None:
            self.draft.accept(read)
        self.growth.learn(chosen, path)

    def _price(self, context: int) -> None:
        """Set what calls cost on a sequence of that length."""
        if context <= self._priced:
            return
        at = self._priced = max(LEAST_CONTEXT, 1 << (context - 1).bit_length())
        if at not in self._prices:
            target, draft = self.costs.target, self.costs.draft
            self._prices[at] = table(target, at), table(draft or target, at)
        self.growth.set_costs(*self._prices[at])


def ranking(
    draft: CachedModel, tokens: Sequence[int], tree: TokenTree, choose: TokenSelector
) -> Ranked:
    """Return the draft's likeliest tokens after the nodes that are asked for; wait once."""
    logits = draft.score(tokens, tree)
    started = time.perf_counter()
    ranked = choose.ranked(logits, tokens, tree, RANKS)
    waited = time.perf_counter() - started
    draft.busy_s += waited
    draft.wait_s += waited
    return ranked


def suiting(draft: CachedModel | None) -> str:
    """Return the name of the costs that suit a model's device where nothing was measured."""
    device = getattr(draft, "device", None)
    return "flat" if device is not None and device.type != "cpu" else "epyc"


def table(surface: Surface, context: float) -> list[float]:
    """Return what calls of 1, 2, ... nodes cost, as far as that is known, at a context or the
    longest known."""
    context = min(context, max(surface.ms))
    most = int(min(*(max(row) for row in surface.ms.values()), SIZES - 1))
    return surface.calls_ms(range(1, most + 1), context).tolist()
