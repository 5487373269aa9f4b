"""All that a step of growing needs, in one record: sizes, fields and the two ways to hold them.

Nodes are numbers below `NODES`, made as the tree grows and forgotten at the next step; node 0 is
the root. Field `x` of node v's j-th kid stands at `x[v * KIDS + j]`. Invariant: `order` holds the
nodes of the tree, the likelier first, so a parent stands before its children.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ouroboros.drafters.draft_tree.compiled import COMPILED

NODES = 1024  # nodes made in one step, those given up included
KIDS = 5  # children of a node at most
OCCURRENCES = 48  # newest occurrences of a token that are looked at
LONGEST = 64  # longer matches count as this long
ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # match lengths at which the mixture counts
CHOICES = 64  # different tokens that may follow a node, at least OCCURRENCES + RECENT
SHORTLIST = 8  # of them those with the largest shares are judged
RECENT = 12  # newest recycled predictions after a token that are looked at
CONTEXT = 6  # tokens that a recycled prediction remembers
ENTRY = CONTEXT + 2  # and its size: the prediction, the entry before with the same last token
RANKS = 6  # the draft's likeliest tokens after a node
CALLS = 48  # draft calls in one step at most
SIZES = 257  # calls of up to SIZES - 1 nodes have a cost
DEPTHS = NODES + 1
INDEX_FEATURES = 12
DRAFT_FEATURES = 21

TEXT, RECYCLED, DRAFT, JUDGED = 1, 2, 4, 8  # who proposes a kid, as bits


class Memory(NamedTuple):
    """What lives from step to step, as arrays that grow (lists where nothing is compiled).

    `text` are the tokens seen, with -1 before each further sequence; `prev[i]` is the position
    before i with the same token, `head[token]` the newest, -1 where there is none. `ring` are the
    recycled predictions, `newest[token]` the number of the last one after a token, 0 for none.
    `slot` is scratch: which choice a token is, by the stamp of the node looked at.
    """

    text: Any
    prev: Any
    head: Any
    ring: Any
    newest: Any
    slot: Any


_INTEGERS = {
    # the sequence: tokens in memory, where the present sequence begins, recycled so far
    "n": 0, "start": 0, "recycled": 0, "stamp": 0,
    # the step: deepest node allowed, deepest that the draft can score, nodes, calls, nodes scored
    "max_depth": 0, "draft_depth": 0, "nodes": 0, "count": 0, "calls": 0, "asked": 0, "fed": 0,
    "noisy": 0, "seed": 0, "ranks": 0,
    # what was asked for
    "max_nodes": 0, "kids": 0, "ask_limit": 0, "recycle": 0, "judge": 0,
    # by node
    "token": NODES, "parent": NODES, "depth": NODES, "scored": NODES, "place": NODES,
    "occurrences": NODES, "position": NODES * OCCURRENCES, "match": NODES * OCCURRENCES,
    "kid_count": NODES, "kid_token": NODES * KIDS, "kid_node": NODES * KIDS,
    "kid_kind": NODES * KIDS, "kind": NODES,
    "first_count": NODES, "first_token": NODES * KIDS, "index_top": NODES, "draft_top": NODES,
    # the tree, the nodes asked for, those fed to the draft and where each stands there
    "order": NODES, "ask": NODES, "fed_token": NODES, "fed_parent": NODES, "fed_depth": NODES,
    "fed_place": NODES,
    # what is handed out
    "out_token": NODES, "out_parent": NODES, "out_depth": NODES, "out_kind": NODES, "read": NODES,
    # scratch of one node
    "path": DEPTHS, "bucket": LONGEST + 1, "choices": 0, "top_order": 0,
    "choice": CHOICES, "choice_match": CHOICES, "choice_kind": CHOICES, "listed": 0,
    "shortlist": SHORTLIST + RANKS, "rank_of": CHOICES, "longest": 0, "longest_next": 0,
    "best_count": 0, "best_token": KIDS, "best_kind": KIDS, "best_node": KIDS,
    # the heap
    "heap": 0, "heap_kid": NODES * KIDS, "heap_tick": NODES * KIDS, "tick": 0,
}  # fmt: skip
_REALS = {
    # of the choice: its temperature, and the logits in one of its scores
    "temperature": 0, "unit": 0,
    # the same all over a step: how often index and draft were right, how much of what a tree is
    # thought to hold comes of it, and how likely a node must be reached to be in the tree
    "index_odds": 0, "draft_odds": 0, "trust": 0, "floor": 0,
    # by node
    "reach": NODES, "chance": NODES, "out_chance": NODES,
    # the tree with what a call may add, the likelier first: how likely reached, and there at all
    "likely": NODES, "there": NODES,
    "kid_p": NODES * KIDS, "heap_p": NODES * KIDS,
    "weight": CHOICES * len(ORDERS), "total": len(ORDERS), "share": CHOICES,
    "recency": CHOICES, "features": DRAFT_FEATURES, "best_p": KIDS,
    "index_weights": INDEX_FEATURES, "draft_weights": DRAFT_FEATURES,
    "verify": SIZES, "call": SIZES, "slope": 0, "spent": 0,
    # what is learned: tokens and cost so far, hits over trials, finds over trials, accepted tokens
    # and how many were expected
    "tokens": 0, "cost": 0, "index_hits": 0, "index_trials": 0, "draft_hits": 0,
    "draft_trials": 0, "finds": 0, "find_trials": 0, "accepted": 0, "expected": 0,
}  # fmt: skip


def _dtype() -> np.dtype:
    fields = [
        (name, kind, (size,)) if size else (name, kind)
        for table, kind in ((_INTEGERS, np.int64), (_REALS, np.float64))
        for name, size in table.items()
    ]
    return np.dtype((np.record, np.dtype(fields, align=True)))


def new_state() -> Any:
    """Return [1] records of zeros (a list where nothing is compiled).

    The steps take it whole and look into its one record: to hand the record itself to compiled code
    takes a hundred times as long as to hand over an array.
    """
    if COMPILED:
        return np.zeros(1, _dtype())
    values: dict[str, Any] = {}
    for table, zero in ((_INTEGERS, 0), (_REALS, 0.0)):
        for name, size in table.items():
            values[name] = [zero] * size if size else zero
    return [SimpleNamespace(**values)]


def listed(values: Any, count: int) -> list:
    """Return the first values of a field as a list of plain numbers."""
    return values[:count].tolist() if COMPILED else values[:count]


def whole(values: Sequence[int] | np.ndarray) -> Any:
    """Return whole numbers as the compiled part, or plain Python, takes them."""
    if COMPILED:
        return np.ascontiguousarray(values, dtype=np.int64).reshape(-1)
    return np.asarray(values, dtype=np.int64).reshape(-1).tolist()


def real(values: Sequence[float] | np.ndarray) -> Any:
    """Return real numbers as the compiled part, or plain Python, takes them."""
    if COMPILED:
        return np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    return np.asarray(values, dtype=np.float64).reshape(-1).tolist()


def filled(size: int, value: int, *, wide: bool = False) -> Any:
    """Return an array of one value (a list where nothing is compiled), of 32 bits or `wide`."""
    if COMPILED:
        return np.full(size, value, np.int64 if wide else np.int32)
    return [value] * size


def longer(array: Any, size: int, value: int, *, wide: bool = False) -> Any:
    """Return an array with more of one value behind it."""
    more = filled(size - len(array), value, wide=wide)
    return np.concatenate([array, more]) if COMPILED else array + more
