"""The token tree, which a drafter proposes and the target scores in one call.

A tree is plain data, independent of models and devices. Node 0 is the last token of the sequence,
and parents precede their children (`parents[i] < i`).

A worked example. The sequence ends with token 7; the drafts are 1 2 and 1 3::

    node    0   1   2   3            0 (7)
    token   7   1   2   3              1 (1)
    parent -1   0   1   1                2 (2)
    depth   0   1   2   2                3 (3)

Each node attends to itself and its ancestors (`ancestors`), at position base + depth. After one
call the target has chosen a token after every node, say 1 3 9 5. After the sequence it chose 1,
which is node 1; after node 1 it chose 3, which is node 3; after node 3 it chose 5, which is not in
the tree. So the accepted path is 0 1 3 (`longest_match`), and the new tokens are 1 3 5.

>>> tree = TokenTree.chain(7, [1]).graft([[2], [3]], at=1)
>>> tree.tokens, tree.parents, tree.depths().tolist()
((7, 1, 2, 3), (-1, 0, 1, 1), [0, 1, 2, 2])
>>> for row in tree.ancestors():
...     print(*("T" if seen else "F" for seen in row))
T F F F
T T F F
T T T F
T T F T
>>> tree.longest_match([1, 3, 9, 5])
[0, 1, 3]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class TokenTree:
    """Tokens with parents, rooted at the last token of a sequence.

    - `tokens[i]`: token id of node i; `parents[i]`: its parent (-1 for the root)
    - `probe`: nodes that are scored but never accepted; `read`: probes that also have logits
    - `source[i]`: name of the source that proposed node i ("" if unknown)
    - `probability[i]`: estimated probability that node i is accepted, given that its parent is
      (empty if unknown)
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
        for name in ("source", "probability"):
            if getattr(self, name) and len(getattr(self, name)) != len(self.tokens):
                raise ValueError(f"{name} must be given for every node or be empty")
        if 0 in self.probe:
            raise ValueError("the root cannot be a probe: it is already part of the sequence")
        if not self.read <= self.probe:
            raise ValueError("read may list probes only: all other nodes have logits anyway")

    @staticmethod
    def chain(root: int, tokens: Sequence[int], source: str = "") -> TokenTree:
        """Return the chain of the root and `tokens`."""
        n = len(tokens)
        return _unchecked(
            tokens=(root, *tokens),
            parents=tuple(range(-1, n)),
            source=("", *[source] * n),
            logit_nodes=tuple(range(n + 1)),
            children={(node, token): node + 1 for node, token in enumerate(tokens)},
            _depths=np.arange(n + 1),
            is_chain=True,
        )

    @staticmethod
    def from_nodes(
        tokens: tuple[int, ...],
        parents: tuple[int, ...],
        depths: np.ndarray,
        *,
        source: tuple[str, ...] = (),
        probability: tuple[float, ...] = (),
        logit_nodes: Sequence[int] | None = None,
        padding: int = 0,
    ) -> TokenTree:
        """Return the tree of the given nodes and `padding` probes: children of the root with its
        token. Nothing is checked. `logit_nodes` must be in ascending order (None: all nodes);
        `depths` is [nodes] int64."""
        size = len(tokens)
        return _unchecked(
            tokens=tokens + tokens[:1] * padding,
            parents=parents + (0,) * padding,
            probe=frozenset(range(size, size + padding)),
            source=source + ("padding",) * padding if source else (),
            probability=probability + (0.0,) * padding if probability else (),
            logit_nodes=tuple(range(size) if logit_nodes is None else logit_nodes),
            _depths=np.append(depths, [1] * padding) if padding else depths,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def graft(
        self, branches: Iterable[Sequence[int]], at: int = 0, *, source: str = ""
    ) -> TokenTree:
        """Return this tree with `branches` added below node `at`; see `TreeBuilder.graft`."""
        builder = self.builder()
        builder.graft(branches, at, source=source)
        return builder.build()

    def builder(self) -> TreeBuilder:
        """Return a builder that contains this tree."""
        builder = TreeBuilder(self.tokens[0])
        builder.tokens, builder.parents = list(self.tokens), list(self.parents)
        builder.depths = self._depths.tolist()
        builder.source = list(self.source) or [""] * len(self)
        builder.probe, builder.read = set(self.probe), set(self.read)
        builder.children = dict(self.children)
        return builder

    @cached_property
    def _depths(self) -> np.ndarray:
        depths = [0] * len(self)
        for node, parent in enumerate(self.parents[1:], start=1):
            depths[node] = depths[parent] + 1
        return np.array(depths, dtype=np.int64)

    def depths(self) -> np.ndarray:
        """Return [n] int64: each node's distance from the root, which is its position offset."""
        return self._depths

    def ancestors(self, first: int = 0) -> np.ndarray:
        """Return the attention mask between nodes, [n - first, n] bool: one row per node from
        `first` on, true at the node and its ancestors."""
        size = len(self)
        rows = [1]  # one bit per node
        for node, parent in enumerate(self.parents[1:], start=1):
            rows.append(rows[parent] | 1 << node)
        packed = b"".join([row.to_bytes(size // 8 + 1, "little") for row in rows[first:]])
        bits = np.frombuffer(packed, dtype=np.uint8).reshape(size - first, -1)
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
        """The nodes whose logits the target returns, in ascending order: all except probes outside
        `read`, unless `with_logits_at` selected others."""
        if not self.probe:
            return tuple(range(len(self)))
        return tuple(sorted(set(range(len(self))) - (self.probe - self.read)))

    def with_logits_at(self, nodes: Iterable[int]) -> TokenTree:
        """Return the same tree with logits at `nodes` only.

        >>> TokenTree.chain(7, [1, 2, 3]).with_logits_at([3, 2]).logit_nodes
        (2, 3)
        """
        logit_nodes = tuple(sorted(set(nodes)))
        if not logit_nodes or logit_nodes[0] < 0 or logit_nodes[-1] >= len(self):
            raise ValueError(f"the tree has nodes 0 to {len(self) - 1}, not {list(logit_nodes)}")
        return _unchecked(**{**self.__dict__, "logit_nodes": logit_nodes})

    @cached_property
    def is_chain(self) -> bool:
        """Whether each node is the child of the previous node, so that a causal mask suffices."""
        return int(self._depths[-1]) == len(self) - 1

    def pruned(self, max_depth: int) -> TokenTree:
        """Return the tree without nodes deeper than `max_depth`; the root is always kept."""
        if max_depth >= len(self) - 1:
            return self
        kept = np.flatnonzero(self._depths <= max(max_depth, 0)).tolist()
        if len(kept) == len(self):
            return self
        index = {node: new for new, node in enumerate(kept)}
        return TokenTree(
            tuple(self.tokens[node] for node in kept),
            tuple(index.get(self.parents[node], -1) for node in kept),
            frozenset(index[node] for node in kept if node in self.probe),
            tuple(self.source[node] for node in kept if self.source),
            frozenset(index[node] for node in kept if node in self.read),
            tuple(self.probability[node] for node in kept if self.probability),
        )

    def draft_depth(self) -> int:
        """Return the depth of the deepest node that is not a probe."""
        if not self.probe:
            return len(self) - 1 if self.is_chain else max(self._depths.tolist())
        return int(np.delete(self._depths, list(self.probe)).max())

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """Map (parent, token) to the child node; do not modify. Probes are left out; if siblings
        share a token, the last one wins."""
        pairs = zip(self.parents, self.tokens, strict=True)
        return {pair: n for n, pair in enumerate(pairs) if n and n not in self.probe}

    def has_children(self, node: int) -> bool:
        """Return whether a node has a child that is not a probe."""
        return any(parent == node for parent, _ in self.children)

    def longest_match(self, chosen: Sequence[int]) -> list[int]:
        """Return the accepted path, root first.

        `chosen[i]` is the token that the target chose after node i (ignored outside `logit_nodes`).
        A node is accepted if its parent is accepted and its token is the target's choice after the
        parent. Probes are never accepted. If siblings have equal tokens, several paths can match;
        the longest is returned.
        """
        if len(self.children) == len(self) - 1 - len(self.probe):  # no siblings with equal tokens
            path, child = [0], self.children.get((0, chosen[0]))
            while child is not None:
                path.append(child)
                child = self.children.get((child, chosen[child]))
            return path
        accepted = {0}
        for node, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent in accepted and token == chosen[parent] and node not in self.probe:
                accepted.add(node)
        return self.path_to(max(sorted(accepted), key=self._depths.__getitem__))


class TreeBuilder:
    """A tree under construction: methods add branches in place, `build` returns a `TokenTree`.

    The fields are those of `TokenTree`, plus `depths[i]` (node i's distance from the root) and
    `children`. You may read them and set `source[i]`; add nodes by the methods only. Siblings added
    by `graft` have different tokens.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.source = [""]
        self.probe: set[int] = set()
        self.read: set[int] = set()
        self.children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def graft(self, branches: Iterable[Sequence[int]], at: int = 0, *, source: str = "") -> None:
        """Add `branches` below node `at`. Branches with a common prefix share its nodes, and reuse
        nodes that the tree already has (except probes). Raises `ValueError` for an unknown node."""
        if not 0 <= at < len(self):
            raise ValueError(f"the tree has nodes 0 to {len(self) - 1}, not {at}")
        for branch in branches:
            node = at
            for token in branch:
                below = self.children.get((node, token))
                if below is None:
                    below = self.children[node, token] = len(self.tokens)
                    self.tokens.append(token)
                    self.parents.append(node)
                    self.depths.append(self.depths[node] + 1)
                    self.source.append(source)
                node = below

    def add_probes(self, tokens: Sequence[int], parents: Sequence[int], source: str) -> None:
        """Add one probe per token, even if its parent has a child with the same token.

        A parent is an existing node or an earlier probe of this call.
        """
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += parents
        for parent in parents:
            self.depths.append(self.depths[parent] + 1)
        self.source += [source] * len(tokens)
        self.probe.update(range(first, len(self.tokens)))

    def build(self) -> TokenTree:
        """Return the tree of the nodes added so far; the builder stays usable."""
        return _unchecked(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            probe=frozenset(self.probe),
            source=tuple(self.source),
            read=frozenset(self.read),
            _depths=np.array(self.depths, dtype=np.int64),
            children=dict(self.children),
        )


def _unchecked(**fields: object) -> TokenTree:
    """Return a tree with these fields and cached properties; omitted fields have their defaults.
    Skips the checks of the constructor, which would take as long as building the tree."""
    tree = object.__new__(TokenTree)
    tree.__dict__.update(fields)
    return tree


ROOT = TokenTree((0,), (-1,))
"""A tree that consists of the root alone, for calls in which the root's token does not matter."""
