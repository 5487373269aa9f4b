"""The token tree: what a drafter proposes and a target scores in one call.

Pure data: no device, no model. Invariant: node 0 is the last token of the sequence, and a node's
parent comes before it (`parents[i] < i`), so one pass from left to right visits parents first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ouroboros.growing import Children, Growing


@dataclass(frozen=True)
class TokenTree:
    """Tokens with parents, rooted at the last token of a sequence.

    `tokens[i]` is the token id of node i and `parents[i]` its parent (-1 for the root). Nodes in
    `probe` are computed but never accepted; those among them whose prediction the drafter wants to
    see stand in `read`. `source[i]` names who proposed node i ("" if not said), `probability[i]` is
    how likely that one thought it to be accepted, given its parent is (empty if not said).

    >>> tree = TokenTree.chain(7, [1, 2]).graft([(3, 4), (3, 5)], at=2)
    >>> tree.tokens, tree.parents
    ((7, 1, 2, 3, 4, 5), (-1, 0, 1, 2, 3, 3))
    >>> tree.longest_match([1, 2, 3, 5, 0, 9])
    [0, 1, 2, 3, 5]
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probe: frozenset[int] = frozenset()
    source: tuple[str, ...] = ()
    read: frozenset[int] = frozenset()
    probability: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents) or not self.tokens:
            raise ValueError("a tree needs a root, and one parent for each token")
        if self.parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(self.parents) if i):
            raise ValueError("parents[0] must be -1 and every other parent must precede its child")
        if self.source and len(self.source) != len(self.tokens):
            raise ValueError("source must name every node or be empty")
        if self.probability and len(self.probability) != len(self.tokens):
            raise ValueError("probability must be said of every node or be empty")
        if 0 in self.probe:
            raise ValueError("the root cannot be a probe: it is already part of the sequence")
        if not self.read <= self.probe:
            raise ValueError("read may name probes only: every other node is read anyway")

    @staticmethod
    def chain(root: int, tokens: Sequence[int], source: str = "") -> TokenTree:
        """Return the root followed by `tokens`, each the child of the one before."""
        n = len(tokens)
        return _unchecked(
            tokens=(root, *tokens),
            parents=tuple(range(-1, n)),
            probe=frozenset(),
            source=("", *[source] * n),
            read=frozenset(),
            probability=(),
            _levels=tuple(range(n + 1)),
            is_chain=True,
        )

    @staticmethod
    def made(
        tokens: tuple[int, ...],
        parents: tuple[int, ...],
        depths: tuple[int, ...],
        *,
        source: tuple[str, ...] = (),
        probability: tuple[float, ...] = (),
        logit_nodes: Sequence[int] | None = None,
    ) -> TokenTree:
        """Return the tree of nodes that are known to be right: nothing is checked, and no node is a
        probe. The predictions after the nodes in `logit_nodes`, ascending, are wanted (None: after all).
        """
        return _unchecked(
            tokens=tokens,
            parents=parents,
            probe=frozenset(),
            source=source,
            read=frozenset(),
            probability=probability,
            logit_nodes=tuple(range(len(tokens)) if logit_nodes is None else logit_nodes),
            _levels=depths,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def graft(
        self,
        branches: Iterable[Sequence[int]],
        at: int = 0,
        *,
        source: str = "",
        probe: bool = False,
    ) -> TokenTree:
        """Return this tree with `branches` hung below node `at`; see `Growing.graft`."""
        growing = self.growing()
        growing.graft(branches, at, source=source, probe=probe)
        return TokenTree.grown(growing)

    def growing(self) -> Growing:
        """Return the nodes of this tree as lists to which more can be hung."""
        growing = Growing(self.tokens[0])
        growing.tokens, growing.parents = list(self.tokens), list(self.parents)
        growing.depths = list(self._levels)
        growing.source = list(self.source) or [""] * len(self)
        growing.probe, growing.read = set(self.probe), set(self.read)
        growing.children = dict(self.children)
        return growing

    @staticmethod
    def grown(growing: Growing) -> TokenTree:
        """Return the tree that has grown so far."""
        return _unchecked(
            tokens=tuple(growing.tokens),
            parents=tuple(growing.parents),
            probe=frozenset(growing.probe),
            source=tuple(growing.source),
            read=frozenset(growing.read),
            probability=(),
            _levels=tuple(growing.depths),
            children=dict(growing.children),
        )

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        levels = [0] * len(self.parents)
        for node, parent in enumerate(self.parents[1:], start=1):
            levels[node] = levels[parent] + 1
        return tuple(levels)

    @cached_property
    def _depths(self) -> np.ndarray:
        return np.array(self._levels, dtype=np.int64)

    def depths(self) -> np.ndarray:
        """Return [n] int64: each node's distance from the root, which is its position offset."""
        return self._depths

    def ancestors(self) -> np.ndarray:
        """Return [n, n] bool: row i is true at node i and at each of its ancestors.

        For the tree 0 - 1 - 2 with a second child 3 of node 1::

            T F F F
            T T F F
            T T T F
            T T F T
        """
        size = len(self)
        rows = [1]  # a bit for each node
        for node in range(1, size):
            rows.append(rows[self.parents[node]] | 1 << node)
        packed = b"".join([row.to_bytes(size // 8 + 1, "little") for row in rows])
        bits = np.frombuffer(packed, dtype=np.uint8).reshape(size, -1)
        return np.unpackbits(bits, axis=1, count=size, bitorder="little").view(bool)

    def path_to(self, node: int) -> list[int]:
        """Return the nodes from the root to `node`, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    @cached_property
    def logit_nodes(self) -> tuple[int, ...]:
        """The nodes whose prediction is wanted, ascending: all real ones, and the probes in `read`,
        unless `with_logits_at` has said which."""
        if not self.probe:
            return tuple(range(len(self)))
        return tuple(sorted(set(range(len(self))) - (self.probe - self.read)))

    def with_logits_at(self, nodes: Iterable[int]) -> TokenTree:
        """Return the same tree, of which the predictions after these nodes alone are wanted.

        >>> TokenTree.chain(7, [1, 2, 3]).with_logits_at([3, 2]).logit_nodes
        (2, 3)
        """
        logit_nodes = tuple(sorted(set(nodes)))
        if not logit_nodes or logit_nodes[0] < 0 or logit_nodes[-1] >= len(self):
            raise ValueError(f"the tree has nodes 0 to {len(self) - 1}, not {list(logit_nodes)}")
        return _unchecked(**{**self.__dict__, "logit_nodes": logit_nodes})

    @cached_property
    def is_chain(self) -> bool:
        """True where every node is the child of the one before: plain causal attention fits."""
        return self.parents == tuple(range(-1, len(self) - 1))

    def pruned(self, max_depth: int) -> TokenTree:
        """Return the tree without the nodes deeper than `max_depth` (at least the root stays)."""
        if max(self._levels) <= max_depth:
            return self
        kept = [node for node, depth in enumerate(self._levels) if depth <= max_depth or not node]
        if len(kept) == len(self):
            return self
        index = {node: new for new, node in enumerate(kept)}
        return TokenTree(
            tuple(self.tokens[node] for node in kept),
            tuple(index.get(self.parents[node], -1) for node in kept),
            frozenset(index[node] for node in kept if node in self.probe),
            tuple(self.source[node] for node in kept) if self.source else (),
            frozenset(index[node] for node in kept if node in self.read),
            tuple(self.probability[node] for node in kept) if self.probability else (),
        )

    def draft_depth(self) -> int:
        """Return the depth of the deepest node that may be accepted."""
        if not self.probe:
            return max(self._levels)
        return max(depth for node, depth in enumerate(self._levels) if node not in self.probe)

    @cached_property
    def children(self) -> Children:
        """The child of a node by (node, token) among the real nodes; do not change it."""
        pairs = zip(self.parents, self.tokens, strict=True)
        return {pair: n for n, pair in enumerate(pairs) if n and n not in self.probe}

    def has_children(self, node: int) -> bool:
        """Return whether a real node hangs below this one."""
        if not self.probe:
            return node in self.parents
        return any(p == node and n not in self.probe for n, p in enumerate(self.parents))

    def longest_match(self, chosen: Sequence[int]) -> list[int]:
        """Return the accepted path, root first.

        `chosen[i]` is the token that the target puts after node i (any value where it was not
        logit_nodes). A node is accepted if its parent is and its token is the one chosen there; at most
        one path can match when siblings differ, and where a tree repeats a sibling the deepest
        path wins. Probes never match.
        """
        if len(self.children) != len(self) - 1 - len(self.probe):
            return self._longest_of_equals(chosen)
        path, node = [0], self.children.get((0, chosen[0]))
        while node is not None:
            path.append(node)
            node = self.children.get((node, chosen[node]))
        return path

    def _longest_of_equals(self, chosen: Sequence[int]) -> list[int]:
        """The longest match where siblings repeat: several paths may match."""
        accepted, best = {0}, 0
        for node in range(1, len(self)):
            parent = self.parents[node]
            if node in self.probe or parent not in accepted:
                continue
            if self.tokens[node] == chosen[parent]:
                accepted.add(node)
                if self._levels[node] > self._levels[best]:
                    best = node
        return self.path_to(best)


def _unchecked(**fields: object) -> TokenTree:
    """Return a tree of fields (cached ones too) that are known to be right: a check costs as much
    as building the tree."""
    tree = object.__new__(TokenTree)
    tree.__dict__.update(fields)
    return tree


ROOT = TokenTree((0,), (-1,))
"""A tree of the last token alone, whichever it is."""
