"""Split a tree into one subtree per rank: some branches with their ancestors.

Invariant: a subtree contains all ancestors of its nodes, so a rank can score it without other
ranks' keys and values. Each logit node is owned by one rank, which sends the token chosen after it
to the others. The split is deterministic, so all ranks compute the same subtrees.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import TokenTree

Nodes = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A rank's subtree: its `nodes`, ascending, and the nodes `owned`, whose tokens it sends."""

    nodes: Nodes
    owned: Nodes

    def of(self, tree: TokenTree) -> TokenTree:
        """Return the subtree as a tree, with the owned nodes as logit nodes (the root if none)."""
        index = {node: new for new, node in enumerate(self.nodes)}
        tokens = tuple(tree.tokens[node] for node in self.nodes)
        parents = tuple(index.get(tree.parents[node], -1) for node in self.nodes)
        owned = [index[node] for node in self.owned]
        return TokenTree(tokens, parents).with_logits_at(owned or [0])


def cut(tree: TokenTree, loads: Sequence[int]) -> list[Nodes]:
    """Return each rank's nodes. Leaves in depth-first order are divided between the ranks such that
    the largest number of tokens that a rank feeds is minimal; `loads[r]` is the number of tokens
    that rank r feeds before its subtree. A rank without leaves gets the nodes of the first rank
    that has some.

    >>> cut(TokenTree((9, 1, 2, 3, 4), (-1, 0, 1, 0, 3)), [0, 0])
    [(0, 1, 2), (0, 3, 4)]
    """
    inner = set(tree.parents)
    paths = sorted(tree.path_to(node) for node in range(len(tree)) if node not in inner)
    shared = [0, *(first_mismatch(*pair) or 0 for pair in pairwise(paths))]

    def fill(limit: int) -> list[list[list[int]]]:
        """Return the ranks' paths if each feeds at most `limit` tokens; [] if impossible."""
        runs, at = [], 0
        for fed in loads:
            first = at
            while at < len(paths):
                fed += len(paths[at]) - (shared[at] if at > first else 0)
                if fed > limit:
                    break
                at += 1
            runs.append(paths[first:at])
        return runs if at == len(paths) else []

    limits = range(1, len(tree) + max(loads) + 1)  # the largest lets one rank feed everything
    runs = fill(limits[bisect_left(limits, True, key=lambda limit: bool(fill(limit)))])
    parts = [tuple(sorted({node for path in run for node in path})) for run in runs]
    return [part or next(filter(None, parts)) for part in parts]


def assign_owners(tree: TokenTree, nodes: Sequence[Nodes]) -> list[Part]:
    """Return the `Part` of each rank. A logit node goes to the rank with the fewest owned nodes
    among those that score it."""
    owned: list[list[int]] = [[] for _ in nodes]
    members = list(enumerate(map(set, nodes)))
    holders = {node: [r for r, own in members if node in own] for node in tree.logit_nodes}
    for node in sorted(tree.logit_nodes, key=lambda node: len(holders[node])):
        owned[min(holders[node], key=lambda rank: len(owned[rank]))].append(node)
    return [Part(part, tuple(sorted(own))) for part, own in zip(nodes, owned, strict=True)]
