"""A tree cut into parts, one for each rank: whole branches, and the trunk above them.

Invariant: a part is closed under ancestors, so a rank can score it with no key or value of another
one; and every asked node is owned by one rank, which tells the others what was chosen there. Ranks
that cut the same tree cut it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ouroboros.tree import TokenTree

Nodes = tuple[int, ...]
Split = Callable[[TokenTree, Sequence[int]], list[Nodes]]
"""(tree, tokens that each rank must feed first) -> each rank's nodes, ascending."""


@dataclass(frozen=True)
class Part:
    """A rank's `nodes` of a tree, ascending, and those of them whose choice it tells the others."""

    nodes: Nodes
    owned: Nodes

    def of(self, tree: TokenTree) -> TokenTree:
        """Return the part as a tree of its own, of which the owned nodes are asked (the root where
        there are none)."""
        index = {node: new for new, node in enumerate(self.nodes)}
        tokens = tuple(tree.tokens[node] for node in self.nodes)
        parents = tuple(index.get(tree.parents[node], -1) for node in self.nodes)
        return TokenTree(tokens, parents).with_logits_at(
            [index[node] for node in self.owned] or [0]
        )


def cut(tree: TokenTree, loads: Sequence[int]) -> list[Nodes]:
    """Return each rank's nodes: leaves in depth-first order, cut into runs, so that the rank with
    the most to feed (`loads` counts what it feeds before its part) has as little as can be.

    A rank that is left without a leaf takes the nodes of one that has some: it has the time, and
    may keep what is accepted.

    >>> cut(TokenTree((9, 1, 2, 3, 4), (-1, 0, 1, 0, 3)), [0, 0])
    [(0, 1, 2), (0, 3, 4)]
    """
    leaves = _leaves(tree)
    low, high = 1, len(tree) + max(loads)
    while low < high:
        middle = (low + high) // 2
        if _filled(leaves, loads, middle) is None:
            low = middle + 1
        else:
            high = middle
    runs = _filled(leaves, loads, low)
    assert runs is not None, "one rank has room for all"
    parts = [_closed(tree, run) for run in runs]
    some = next(part for part in parts if part)
    return [part or some for part in parts]


def owners(tree: TokenTree, nodes: Sequence[Nodes]) -> list[Part]:
    """Return the parts, each asked node owned by the rank that has it and owns the fewest."""
    owned: list[list[int]] = [[] for _ in nodes]
    having: list[list[int]] = [[] for _ in range(len(tree))]
    for rank, part in enumerate(nodes):
        for node in part:
            having[node].append(rank)
    for node in sorted(tree.logit_nodes, key=lambda node: len(having[node])):
        owned[min(having[node], key=lambda rank: len(owned[rank]))].append(node)
    return [Part(part, tuple(sorted(own))) for part, own in zip(nodes, owned, strict=True)]


def _leaves(tree: TokenTree) -> list[tuple[int, int, int]]:
    """Return (leaf, nodes from the root to it, those of them shared with the leaf before), in
    depth-first order."""
    below: list[list[int]] = [[] for _ in range(len(tree))]
    for node, parent in enumerate(tree.parents[1:], start=1):
        below[parent].append(node)
    found, stack, shared = [], [(0, 1)], 0
    while stack:
        node, length = stack.pop()
        shared = min(shared, length - 1)
        stack += [(child, length + 1) for child in reversed(below[node])]
        if not below[node]:
            found.append((node, length, shared))
            shared = length
    return found


def _filled(
    leaves: Sequence[tuple[int, int, int]], loads: Sequence[int], limit: int
) -> list[list[int]] | None:
    """Return each rank's leaves where none may feed more than `limit` tokens; None if that is too
    little."""
    runs: list[list[int]] = [[] for _ in loads]
    at = 0
    for run, load in zip(runs, loads, strict=True):
        fed = load
        while at < len(leaves):
            leaf, length, shared = leaves[at]
            fed += length - (shared if run else 0)
            if fed > limit:
                break
            run.append(leaf)
            at += 1
    return runs if at == len(leaves) else None


def _closed(tree: TokenTree, leaves: Sequence[int]) -> Nodes:
    """Return the leaves and all their ancestors, ascending."""
    found: set[int] = set()
    for node in leaves:
        while node >= 0 and node not in found:
            found.add(node)
            node = tree.parents[node]
    return tuple(sorted(found))
