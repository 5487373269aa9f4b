"""A drafter of which only rank 0 has need: its trees are told to the other ranks.

Invariant: every rank scores the same tree, also where the ranks' own drafters would not agree, as
on unlike machines.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ouroboros.decode import Drafter, DrafterCapabilities
from ouroboros.engine.parallel.ranks import Ranks
from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree

PROBE, READ = 1, 2


class OnFirstRank:
    """Lets `drafter` draft and learn on rank 0 alone. What else it has is its own."""

    def __init__(self, drafter: Drafter, ranks: Ranks) -> None:
        self.drafter = drafter
        self.group = ranks

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt."""
        if self.group.rank == 0:
            self.drafter.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return rank 0's tree. Where it fails, all do."""
        if self.group.rank:
            packed = self.group.broadcast(b"")
            if not packed:
                raise RuntimeError("rank 0 failed to draft")
            return unpacked(packed)
        try:
            tree = self.drafter.propose(tokens, budget)
            packed = pack(tree)
        except Exception:
            self.group.broadcast(b"")
            raise
        self.group.broadcast(packed)
        return tree

    def observe_ranked(self, tree: TokenTree, ranked: Ranked, path: Sequence[int]) -> None:
        """Learn from the target's ranking, where the drafter does."""
        if self.group.rank == 0:
            DrafterCapabilities.of(self.drafter).observe_ranked(tree, ranked, path)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn."""
        if self.group.rank == 0:
            self.drafter.observe(tree, chosen, path)


def pack(tree: TokenTree) -> bytes:
    """Return what scoring needs of a tree: tokens, parents and probes, 9 bytes a node."""
    kinds = np.zeros(len(tree), dtype=np.uint8)
    kinds[list(tree.probe)] |= PROBE
    kinds[list(tree.read)] |= READ
    words = np.array([tree.tokens, tree.parents], dtype="<i4")
    return words.tobytes() + kinds.tobytes()


def unpacked(data: bytes) -> TokenTree:
    """Return the tree of which `pack` made this."""
    nodes = len(data) // 9
    tokens, parents = np.frombuffer(data[: 8 * nodes], dtype="<i4").reshape(2, nodes).tolist()
    kinds = np.frombuffer(data[8 * nodes :], dtype=np.uint8)
    probe, read = (frozenset(np.flatnonzero(kinds & kind).tolist()) for kind in (PROBE, READ))
    return TokenTree(tuple(tokens), tuple(parents), probe, read=read)
