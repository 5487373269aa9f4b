"""A tree while it is being built: branches are hung in place, and it is frozen once.

A drafter hangs phrases, second choices and a window below one draft; a new frozen tree for each of
them would copy and check all nodes every time. Invariant: parents come before their children, and
no real node has two real children of one token unless it began with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Children = dict[tuple[int, int], int]
"""A node's child by (node, token); of repeated siblings the last."""


class Growing:
    """The nodes of a tree as lists, and `children`: the real nodes by (parent, token).

    The fields are those of `TokenTree`, which `TokenTree.grown` makes of it; `depths[i]` is node
    i's distance from the root. Read them freely; only the methods add nodes.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.source = [""]
        self.probe: set[int] = set()
        self.read: set[int] = set()
        self.children: Children = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def graft(
        self,
        branches: Iterable[Sequence[int]],
        at: int = 0,
        *,
        source: str = "",
        probe: bool = False,
    ) -> None:
        """Hang `branches` below node `at`.

        Prefixes shared with each other, or with nodes already there, merge: a trie, not copies.
        Probe branches never merge with real nodes, nor real branches with probes.
        """
        child = self._probes() if probe else self.children
        tokens, parents, depths = self.tokens, self.parents, self.depths
        first = len(tokens)
        for branch in branches:
            node = at
            for token in branch:
                below = child.get((node, token))
                if below is None:
                    below = child[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    depths.append(depths[node] + 1)
                node = below
        self.source += [source] * (len(tokens) - first)
        if probe:
            self.probe.update(range(first, len(self.tokens)))

    def chain(self, tokens: Sequence[int], sources: Sequence[str]) -> None:
        """Hang the first nodes of a tree, each the child of the one before, with a source for
        each."""
        self.tokens += tokens
        self.parents += range(len(tokens))
        self.depths += range(1, len(tokens) + 1)
        self.source += sources
        for node, token in enumerate(tokens):
            self.children[node, token] = node + 1

    def hang_probes(self, tokens: Sequence[int], parents: Sequence[int], source: str) -> None:
        """Hang probes below nodes that are there, or probes before them; none of them merge."""
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += parents
        for parent in parents:
            self.depths.append(self.depths[parent] + 1)
        self.source += [source] * len(tokens)
        self.probe.update(range(first, len(self.tokens)))

    def _probes(self) -> Children:
        return {(self.parents[n], self.tokens[n]): n for n in sorted(self.probe)}
