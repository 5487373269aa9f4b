"""Cut a tree into one part for each rank: whole branches, and the trunk above them.

Invariant: a part has all ancestors of its nodes, so a rank can score it without another rank's keys
and values; each of the tree's `logit_nodes` is owned by one rank, which tells the others what was
chosen there. Ranks that cut the same tree cut it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ouroboros.tree import TokenTree

Nodes = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A rank's `nodes` of a tree, ascending, and the `owned` ones, whose choice it sends."""

    nodes: Nodes
    owned: Nodes

    def of(self, tree: TokenTree) -> TokenTree:
        """Return the part as a tree with logits wanted at the owned nodes (at the root if none)."""
        index = {node: new for new, node in enumerate(self.nodes)}
        tokens = tuple(tree.tokens[node] for node in self.nodes)
        parents = tuple(index.get(tree.parents[node], -1) for node in self.nodes)
        owned = [index[node] for node in self.owned]
        return TokenTree(tokens, parents).with_logits_at(owned or [0])


def cut(tree: TokenTree, loads: Sequence[int]) -> list[Nodes]:
    """Return each rank's nodes: the leaves in depth-first order are cut into runs such that the
    rank with the most tokens to feed has as few as possible. `loads` counts what each rank feeds
    before its part. A rank without a leaf takes the nodes of the first rank that has some.

    >>> cut(TokenTree((9, 1, 2, 3, 4), (-1, 0, 1, 0, 3)), [0, 0])
    [(0, 1, 2), (0, 3, 4)]
    """
    children: list[list[int]] = [[] for _ in range(len(tree))]
    for node, parent in enumerate(tree.parents[1:], start=1):
        children[parent].append(node)
    leaves, stack, shared = [], [(0, 1)], 0  # (leaf, nodes above and with it, shared with the last)
    while stack:
        node, length = stack.pop()
        shared = min(shared, length - 1)
        stack += [(child, length + 1) for child in reversed(children[node])]
        if not children[node]:
            leaves.append((node, length, shared))
            shared = length

    def fill(limit: int) -> list[list[int]] | None:
        """Return each rank's leaves if none feeds more than `limit` tokens; None if impossible."""
        runs: list[list[int]] = [[] for _ in loads]
        at = 0
        for run, fed in zip(runs, loads, strict=True):
            while at < len(leaves):
                leaf, length, shared = leaves[at]
                fed += length - (shared if run else 0)
                if fed > limit:
                    break
                run.append(leaf)
                at += 1
        return runs if at == len(leaves) else None

    low, high = 1, len(tree) + max(loads)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fill(middle) else (middle + 1, high)
    runs = fill(low)
    assert runs is not None, "one rank has room for all"
    parts = [tuple(sorted({n for leaf in run for n in tree.path_to(leaf)})) for run in runs]
    nonempty = next(part for part in parts if part)
    return [part or nonempty for part in parts]


def assign_owners(tree: TokenTree, nodes: Sequence[Nodes]) -> list[Part]:
    """Return the parts; each logit node is owned by the rank that has it and owns the fewest."""
    owned: list[list[int]] = [[] for _ in nodes]
    holders: list[list[int]] = [[] for _ in range(len(tree))]
    for rank, part in enumerate(nodes):
        for node in part:
            holders[node].append(rank)
    for node in sorted(tree.logit_nodes, key=lambda node: len(holders[node])):
        owned[min(holders[node], key=lambda rank: len(owned[rank]))].append(node)
    return [Part(part, tuple(sorted(own))) for part, own in zip(nodes, owned, strict=True)]
