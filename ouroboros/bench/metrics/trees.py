"""A draft tree and its outcome, as trees.jsonl records it and the report's viewer shows it."""

from __future__ import annotations

from typing import NamedTuple

from ouroboros.core.tree import TokenTree


class ProposedTree(NamedTuple):
    """One step: the draft `tree`, its accepted `path` (nodes, root first), and `then`, the token
    that the target chose after the path."""

    tree: TokenTree
    path: tuple[int, ...]
    then: int
