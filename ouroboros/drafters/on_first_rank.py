"""A drafter that runs on rank 0 only and broadcasts its trees to the other ranks.

Invariant: every rank scores the same tree, although machines might draft differently.
"""

from __future__ import annotations

from collections.abc import Sequence

from ouroboros.calls import Steps
from ouroboros.core.select import Ranked, TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Drafter, DrafterCapabilities, proposed
from ouroboros.engine.parallel.ranks import Ranks

SENT = ("tokens", "parents", "probe", "read")


class OnFirstRank:
    """Runs `drafter` on rank 0 only; the other ranks receive its trees. Other attributes are read
    from `drafter`, on every rank."""

    def __init__(self, drafter: Drafter, ranks: Ranks) -> None:
        self.drafter = drafter
        self.group = ranks

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt on rank 0; do nothing on other ranks."""
        if self.group.rank == 0:
            self.drafter.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the tree that the drafter of rank 0 proposes. Other ranks get it without sources
        and probabilities (see SENT). If the drafter raises an error, rank 0 raises it too, and the
        other ranks raise `RuntimeError`."""
        if self.group.rank:
            nodes = self.group.broadcast(None)
            if nodes is None:
                raise RuntimeError("rank 0 failed to draft")
            return TokenTree(**nodes)
        nodes = None
        try:
            tree = yield from proposed(self.drafter, tokens, budget)
            nodes = {name: getattr(tree, name) for name in SENT}
        finally:
            self.group.broadcast(nodes)
        return tree

    def observe_ranked(self, tree: TokenTree, ranked: Ranked, path: Sequence[int]) -> None:
        """Pass the target's ranking to the drafter on rank 0, if it reads rankings."""
        if self.group.rank == 0:
            DrafterCapabilities.of(self.drafter).observe_ranked(tree, ranked, path)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Pass the verified tree to the drafter on rank 0; do nothing on other ranks."""
        if self.group.rank == 0:
            self.drafter.observe(tree, chosen, path)
