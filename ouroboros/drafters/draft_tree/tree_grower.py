"""The draft tree of one drafter: its memory, and its steps in terms of lists and arrays.

Compiled functions check no bounds; this class sizes every array before it calls them. Memory is
bounded: the text at MAX_TEXT tokens (its older half is dropped), recycled predictions at RING.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ouroboros.drafters.draft_tree import feedback, grow, state
from ouroboros.drafters.draft_tree.candidates import Weights, fill_tables
from ouroboros.drafters.draft_tree.phrase_index import append
from ouroboros.drafters.draft_tree.state import (
    CHILDREN,
    JUDGED,
    NODES,
    PHRASE,
    RANKS,
    RECYCLED,
    RING,
    SIZES,
    new_memory,
    new_state,
)
from ouroboros.drafters.pool import CONTEXT, RATES, DrafterMemory

log = logging.getLogger(__name__)
MAX_TEXT = 1 << 20  # tokens, 8 bytes each

SOURCES = tuple(
    "judged" if kind & JUDGED else "phrase" if kind & PHRASE else "recycled" if kind & RECYCLED
    else "draft"
    for kind in range(2 * JUDGED)
)  # fmt: skip
"""Who proposed a node, by its kind: a "phrase" of the text, a "recycled" prediction, the "draft"
model, or "judged": a phrase whose parent the draft model scored too."""


class Shape(NamedTuple):
    """Limits of a tree: nodes, children of a node, nodes of a draft call; whether predictions are
    recycled, and whether the draft model scores nodes that have phrases below them."""

    max_nodes: int = 64
    children: int = CHILDREN
    draft_nodes: int = 24
    recycle: bool = True
    judge: bool = True


class Nodes(NamedTuple):
    """Nodes of a tree, parents first: tokens, parents (-1 for the root), depths; of a proposal also
    who proposed each, and P(accepted | its parent is)."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    source: tuple[str, ...] = ()
    probability: tuple[float, ...] = ()


class TreeGrower:
    """Grow a draft tree in each step of a sequence.

    Call `start` for each sequence, and in each step `begin`, `add_rankings` while the draft model
    is to score nodes, `proposal` and `learn`. Raises `ValueError` for a `shape` out of range.
    """

    def __init__(self, weights: Weights, shape: Shape | None = None, *, vocab: int = 1024) -> None:
        shape = shape or Shape()
        if not 1 <= shape.max_nodes <= NODES // 2:
            raise ValueError(f"max_nodes {shape.max_nodes} is not between 1 and {NODES // 2}")
        if not 1 <= shape.children <= CHILDREN or shape.draft_nodes < 1:
            raise ValueError(
                f"children {shape.children}, draft_nodes {shape.draft_nodes}: children from 1 to "
                f"{CHILDREN}, draft_nodes at least 1"
            )
        self.shape = shape
        self._states = new_state()
        s = self.state = self._states[0]
        s.max_nodes, s.max_children, s.draft_nodes = shape[:3]
        s.recycle, s.judge = int(shape.recycle), int(shape.judge)
        fill_tables(s)
        s.phrase_weights[:], s.draft_weights[:] = weights.index, weights.draft
        # views of the record's arrays, since a field costs a microsecond at each access
        self._draft = s.draft_token, s.draft_parent, s.draft_depth
        self._out = s.out_token, s.out_parent, s.out_depth
        self._kind, self._prob, self._kept = s.out_kind, s.out_prob, s.kept
        self._vocab = vocab
        self._start = self._known = self._drafted = self._proposed = 0
        self._unlearned: list[int] = []
        self.forget()

    def forget(self) -> None:
        """Forget all texts, recycled predictions and learned rates."""
        s = self.state
        s.length = s.start = s.recycled = s.stamp = 0
        self.memory = new_memory(self._vocab)
        feedback.reset_rates(s)

    def start(self, *, seed: int | None = None, temperature: float = 0.0) -> None:
        """Begin a sequence after those in memory, decoded at `temperature` (0: greedy) with the
        shared noise of `seed` (None: no such noise)."""
        s = self.state
        self._unlearned = []
        if s.length > MAX_TEXT:
            kept = self.remembered()
            self.restore(replace(kept, text=kept.text[-MAX_TEXT // 2 :]))
        if s.length:
            self._reserve(text=int(s.length) + 1)
            append(s, self.memory, np.array([-1], np.int64))
        s.start = self._start = int(s.length)
        self._known = 0
        s.temperature, s.logit_scale = temperature, temperature or 1.0
        s.noisy, s.seed = int(seed is not None), seed or 0

    def set_costs(self, verify: Sequence[float], call: Sequence[float]) -> None:
        """Set what calls cost: `verify[i]` a target call of i + 1 nodes, `call[i]` a draft call.

        The last value of each holds for all larger calls. Only ratios matter: a target call of one
        node counts 1.
        """
        s = self.state
        nodes = np.arange(1, SIZES)
        s.verify_cost[1:] = np.array(verify, float)[np.minimum(nodes, len(verify)) - 1] / verify[0]
        s.draft_cost[1:] = np.array(call, float)[np.minimum(nodes, len(call)) - 1] / verify[0]
        most = max(2, min(self.shape.max_nodes, SIZES - 1))
        s.node_cost = (s.verify_cost[most] - s.verify_cost[1]) / (most - 1)

    def begin(self, tokens: Sequence[int], max_depth: int, max_draft_depth: int) -> int:
        """Begin a step on the sequence, which has only grown since the last; see `grow.begin`."""
        new = tokens[self._known :]
        if self._unlearned:
            self._learn_from_text(new[-1])
        self._known += len(new)
        self._reserve(text=self._start + self._known, token=max(new))
        depth = min(max_depth, NODES - 2)
        self._drafted = grow.begin(
            self._states, self.memory, np.array(new, np.int64), depth, max_draft_depth
        )
        return self._drafted

    def draft_tree(self) -> Nodes:
        """Return the nodes for the draft model in this step; the last ones, as many as `begin` or
        `add_rankings` returned, are to be scored now."""
        return Nodes(*(tuple(values[: self._drafted].tolist()) for values in self._draft))

    def add_rankings(self, ids: np.ndarray, scores: np.ndarray, shares: np.ndarray) -> int:
        """Take the draft model's rankings after the nodes to score, each [nodes, ranks]; return how
        many nodes it shall score next. Raises `ValueError` for more than RANKS ranks."""
        if ids.shape[1] > RANKS:
            raise ValueError(f"{ids.shape[1]} ranks a node: at most {RANKS}")
        self._reserve(token=int(ids.max()))
        count = grow.add_rankings(
            self._states,
            self.memory,
            np.ascontiguousarray(ids, np.int64),
            np.ascontiguousarray(scores, np.float64),
            np.ascontiguousarray(shares, np.float64),
        )
        self._drafted += count
        return count

    def proposal(self) -> Nodes:
        """Return the part of the tree that is worth verifying."""
        size = self._proposed = grow.propose(self._states)
        tokens, parents, depths = (tuple(values[:size].tolist()) for values in self._out)
        sources = ("", *(SOURCES[kind] for kind in self._kind[1:size].tolist()))
        return Nodes(tokens, parents, depths, sources, tuple(self._prob[:size].tolist()))

    def drafted_prefix(self, path: Sequence[int]) -> list[int]:
        """Return the rows in the draft model's tree of an accepted path, as far as it scored it."""
        count = grow.drafted_prefix(self._states, np.array(path, np.int64))
        return self._kept[:count].tolist()

    def learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from verification: `chosen[i]` is the target's token after node i of the proposal
        (-1: unknown), `path` the accepted nodes, root first. Without recycling, `chosen` is not
        read: the text says what the target chose along the path."""
        if self.shape.recycle:
            self._learn(chosen, path)
        else:
            self._unlearned = list(path)

    def _learn_from_text(self, next_token: int) -> None:
        """Learn from the previous step, whose last accepted node `next_token` followed."""
        path, chosen = self._unlearned, [-1] * self._proposed
        for node, after in pairwise(path):
            chosen[node] = int(self._out[0][after])
        chosen[path[-1]] = next_token
        self._unlearned = []
        self._learn(chosen, path)

    def _learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        self._reserve(token=max(chosen))
        feedback.learn(
            self._states,
            self.memory,
            self._proposed,
            np.array(chosen, np.int64),
            np.array(path, np.int64),
        )

    def remembered(self) -> DrafterMemory:
        """Return what outlives a prompt."""
        s, m = self.state, self.memory
        numbers = np.arange(max(1, int(s.recycled) - RING + 1), int(s.recycled) + 1)
        recycled = m.ring[numbers % RING, : CONTEXT + 1].tolist()
        rates = tuple(float(getattr(s, name)) for name in RATES)
        return DrafterMemory(tuple(m.text[: s.length].tolist()), tuple(map(tuple, recycled)), rates)

    def restore(self, remembered: DrafterMemory) -> None:
        """Remember exactly this."""
        self.forget()
        s = self.state
        for name, value in zip(RATES, remembered.rates, strict=False):
            setattr(s, name, value)
        entries = remembered.recycled[-RING + 1 :]
        highest = max([-1, *remembered.text, *(token for entry in entries for token in entry)])
        self._reserve(text=len(remembered.text), token=highest)
        m = self.memory
        append(s, m, np.array(remembered.text, np.int64))
        for number, entry in enumerate(entries, start=1):
            m.ring[number] = *entry, m.newest_recycled[entry[0]]
            m.newest_recycled[entry[0]] = number
        s.recycled = len(entries)

    def _reserve(self, *, text: int = 0, token: int = -1) -> None:
        """Make room for that many tokens of text, and for that token id."""
        m = self.memory
        if text > len(m.text):
            size = _doubled(len(m.text), text)
            m = m._replace(text=_extend(m.text, size, -1), previous=_extend(m.previous, size, -1))
        if token >= self._vocab:
            size = self._vocab = _doubled(self._vocab, token + 1)
            m = m._replace(
                newest=_extend(m.newest, size, -1),
                newest_recycled=_extend(m.newest_recycled, size, 0),
                slot=_extend(m.slot, size, 0),
            )
        self.memory = m


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size


def _extend(array: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.concatenate([array, np.full(size - len(array), value, array.dtype)])


@cache
def warm_up_jit() -> None:
    """Compile the functions of a step, or load them, before any measured step; log a warning where
    that takes long. Later calls do nothing."""
    if state.CACHE is None:
        log.warning(
            "no folder for compiled code can be written: compiling the drafter takes 15 s in each "
            "process; set NUMBA_CACHE_DIR"
        )
    elif not state.CACHED:
        log.warning("compiling the drafter for this machine, once; it takes some 15 s")
    grower = TreeGrower(Weights.load(), Shape(draft_nodes=1))
    grower.set_costs([1.0], [0.0])
    for text in ([1, 2, 1, 2, 1], [3]):
        grower.start()
        if grower.begin(text, 4, 4):
            grower.draft_tree()
            grower.add_rankings(np.array([[5, 6]]), np.array([[1.0, 0.0]]), np.array([[0.7, 0.3]]))
        proposal = grower.proposal()
        grower.drafted_prefix([0])
        grower.learn([2] * len(proposal.tokens), [0])
