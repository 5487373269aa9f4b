"""Token Recycling (Luo et al., ACL 2025, arXiv 2408.08696): remember the target's most
probable next tokens after each scored token, accepted or rejected, and draft from them."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from ouroboros.baselines.suffix_tree import check_state

from ouroboros.core.select import Ranked, TokenSelector
from ouroboros.core.tree import TokenTree, TreeBuilder
from ouroboros.drafters.pool import check_range, token_ids
from ouroboros.engine.eager import read_alone

WIDTH = 8
SOURCE = "recycled"
PATHS = re.findall(
    r"\d+",
    """
    0 1 2 3 4 5 6 7
    00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70
    000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 100 101 110 200 300
    400 500
    0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000
    00000 00001 00002 00010 00020 00100 01000 10000
    000000 000001 000100
    """,
)
"""The nodes of the published tree; a node is written as the ranks on its path from the root."""


def template(nodes: int) -> list[tuple[int, int]]:
    """Return the `nodes` most probable nodes of the published tree, in order, as (parent, rank):
    the index of the parent in this list (-1: the root), and the token's rank in its parent's row.
    The assumed probability of a node decreases with its depth and with the ranks on its path."""

    def likely(path: str) -> float:
        return math.prod(0.5 / (1 + int(rank)) for rank in path)

    kept = sorted(PATHS, key=lambda path: -likely(path))[:nodes]
    index = {path: at for at, path in enumerate(kept)}
    return [(index.get(path[:-1], -1), int(path[-1])) for path in kept]


class TokenRecycling:
    """Fills the published static tree, or its `nodes` most probable nodes, from successor rows.

    `rows[token]` has the WIDTH most probable next tokens that the target predicted when `token` was
    last scored, best first. Rows are learned from every scored node, accepted or rejected, and with
    `read_prompt` also from the prompt's text. `state` "task" keeps them between prompts, as the
    published code does.
    """

    reads_rejected = True
    ranks = WIDTH

    def __init__(
        self,
        *,
        nodes: int = len(PATHS),
        read_prompt: bool = False,
        state: Literal["cold", "task"] = "cold",
    ) -> None:
        check_range(1, len(PATHS), nodes=nodes)
        check_state(state)
        self.template = template(nodes)
        self.read_prompt = read_prompt
        self.carries_state = state == "task"
        self.rows: dict[int, list[int]] = {}
        self._fresh = True

    def state_dict(self) -> dict:
        """Return the state kept between prompts: {"rows": {str(token id): successor ids}}."""
        return {"rows": {str(token): row for token, row in self.rows.items()}}

    def load_state_dict(self, state: Mapping) -> None:
        """Restore the rows of `state_dict`."""
        rows = state["rows"].items()
        self.rows = {int(token): token_ids(row[:WIDTH], least=-1) for token, row in rows}

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt; clear all rows if `state` is "cold"."""
        if not self.carries_state:
            self.rows = {}
        self._fresh = True

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the template's nodes for which successor rows have a token; the root alone in the
        first step after a long prompt."""
        if self._begin(tokens):
            return TokenTree.chain(tokens[-1], ())
        builder = TreeBuilder(tokens[-1])
        index: list[int] = []  # the nodes of the template, -1 for those without a token
        for above, rank in self.template:
            parent = index[above] if above >= 0 else 0
            row = self.rows.get(builder.tokens[parent], ()) if parent >= 0 else ()
            token = row[rank] if rank < len(row) else -1  # -1 also pads rows of small vocabularies
            if token >= 0:
                builder.graft([(token,)], parent, source=SOURCE)
            index.append(builder.children[parent, token] if token >= 0 else -1)
        return builder.build().pruned(budget - 1)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing; `observe_ranked` learns."""

    def observe_ranked(self, tree: TokenTree, ranked: Ranked, path: Sequence[int]) -> None:
        """Replace the row of every scored token, sorted by probability (`ranked` is sorted by
        scores, which include noise). If several nodes have the token, use the last accepted node,
        or the last node if none was accepted."""
        order = np.argsort(-ranked.shares, axis=1, kind="stable")
        ids = np.take_along_axis(ranked.ids, order, axis=1).tolist()
        for at, node in enumerate(tree.logit_nodes):
            self.rows[tree.tokens[node]] = ids[at]
        for node in path:
            self.rows[tree.tokens[node]] = ids[bisect_left(tree.logit_nodes, node)]

    def _begin(self, tokens: Sequence[int]) -> bool:
        """In the first step of a prompt, with `read_prompt`, put each prompt token's successors at
        the front of its row, newest first. Return whether to propose nothing (see `read_alone`)."""
        fresh, self._fresh = self._fresh, False
        for token, after in pairwise(tokens) if fresh and self.read_prompt else ():
            known = self.rows.get(token, [])
            self.rows[token] = [after, *(other for other in known if other != after)][:WIDTH]
        return fresh and read_alone(tokens)
