"""Growth: the state of one drafter, and its steps in terms of lists and arrays.

Every array is as large as the functions need before they are called: they check nothing. Memory is
bounded: the text at LIMIT tokens (its older half is dropped), the ring at RING entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ouroboros.drafters.draft_tree import learn as learning
from ouroboros.drafters.draft_tree import mixture, step
from ouroboros.drafters.draft_tree.index import append
from ouroboros.drafters.draft_tree.remembered import DrafterMemory
from ouroboros.drafters.draft_tree.state import (
    CONTEXT,
    ENTRY,
    JUDGED,
    KIDS,
    NODES,
    RANKS,
    RECYCLED,
    SIZES,
    TEXT,
    Memory,
    filled,
    listed,
    longer,
    new_state,
    real,
    whole,
)
from ouroboros.drafters.draft_tree.weights import Weights

LIMIT = 1 << 20  # tokens of text, 8 bytes each
RING = 1 << 14  # recycled predictions, 32 bytes each
DEEPEST = NODES - 2


def _source(kind: int) -> str:
    """Return who proposed a kid of that kind."""
    if kind & JUDGED:
        return "judged"
    if kind & TEXT:
        return "phrase"
    return "recycled" if kind & RECYCLED else "draft"


SOURCES = tuple(_source(kind) for kind in range(2 * JUDGED))
"""Who proposed a node, by its kind: a "phrase" of a text, a "recycled" prediction, the "draft", or
"judged": a phrase whose parent the draft scored too."""


class Shape(NamedTuple):
    """How large a tree may be: nodes, children of a node, nodes of a draft call; whether
    predictions are recycled, and whether the draft judges what phrases say."""

    max_nodes: int = 64
    kids: int = KIDS
    ask_limit: int = 24
    recycle: bool = True
    judge: bool = True


class Nodes(NamedTuple):
    """Nodes of a tree, parents first: tokens, parents (-1 for the root), depths, and for those of a
    proposal who proposed each and how likely it was thought, given its parent."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    source: tuple[str, ...] = ()
    probability: tuple[float, ...] = ()


class Growth:
    """Grows a token tree below a sequence: `start`, then for each step `begin`, `scored` while the
    draft is asked, `proposal`, `learn`."""

    def __init__(self, weights: Weights, shape: Shape, *, vocab: int = 1024) -> None:
        if not 1 <= shape.max_nodes <= NODES // 2:
            raise ValueError(f"max_nodes {shape.max_nodes} is not between 1 and {NODES // 2}")
        if not 1 <= shape.kids <= KIDS or shape.ask_limit < 1:
            raise ValueError(
                f"children {shape.kids}, draft_nodes {shape.ask_limit}: children from 1 to {KIDS}, "
                "draft_nodes at least 1"
            )
        self.shape = shape
        self._states = new_state()
        s = self.state = self._states[0]
        s.max_nodes, s.kids = shape.max_nodes, shape.kids
        s.ask_limit, s.recycle, s.judge = shape.ask_limit, int(shape.recycle), int(shape.judge)
        mixture.prepare(s)
        for i, weight in enumerate(weights.index):
            s.index_weights[i] = weight
        for i, weight in enumerate(weights.draft):
            s.draft_weights[i] = weight
        self._vocab = vocab
        self._fed_token, self._fed_parent, self._fed_depth = s.fed_token, s.fed_parent, s.fed_depth
        self._token, self._parent, self._depth = s.out_token, s.out_parent, s.out_depth
        self._kind, self._chance, self._read = s.out_kind, s.out_chance, s.read
        self._start = self._known = self._fed = self._proposed = 0
        self._unlearned: list[int] = []
        self.forget()

    def forget(self) -> None:
        """Forget all texts, recycled predictions and rates."""
        s = self.state
        s.n = s.start = s.recycled = s.stamp = 0
        self.memory = Memory(
            filled(1024, -1),
            filled(1024, -1),
            filled(self._vocab, -1),
            filled(RING * ENTRY, 0),
            filled(self._vocab, 0),
            filled(self._vocab, 0, wide=True),
        )
        learning.forget(s)

    def start(self, *, seed: int | None = None, temperature: float = 0.0) -> None:
        """Begin a sequence, behind those remembered. Tokens are drawn at `temperature`, 0 being
        greedy; `seed` is that of the noise, where it is known."""
        s = self.state
        self._unlearned = []
        if s.n > LIMIT:
            kept = self.remembered()
            self.restore(replace(kept, text=kept.text[-LIMIT // 2 :]))
        if s.n:
            self._lengthen(int(s.n) + 1)
            append(s, self.memory, whole([-1]))
        s.start = self._start = int(s.n)
        self._known = 0
        s.temperature, s.unit = temperature, temperature or 1.0
        s.noisy, s.seed = int(seed is not None), seed or 0

    def set_costs(self, verify: Sequence[float], call: Sequence[float]) -> None:
        """Set what calls cost: `verify[i]` a target call of i + 1 nodes, `call[i]` a draft call.

        The last of each stands for all larger calls. Only ratios matter: a target call of one node
        costs 1.
        """
        s, unit = self.state, verify[0]
        verifying, calling = s.verify, s.call
        for nodes in range(1, SIZES):
            verifying[nodes] = verify[min(nodes, len(verify)) - 1] / unit
            calling[nodes] = call[min(nodes, len(call)) - 1] / unit
        most = max(2, min(self.shape.max_nodes, SIZES - 1))
        s.slope = (verifying[most] - verifying[1]) / (most - 1)

    def begin(self, tokens: Sequence[int], max_depth: int, draft_depth: int) -> int:
        """Begin a step on the sequence, which has only grown since the last; see `step.begin`."""
        fresh = tokens[self._known :]
        if self._unlearned:
            self._learn_from_text(fresh[-1])
        self._known += len(fresh)
        self._lengthen(self._start + self._known)
        self._widen(max(fresh))
        deepest = min(max_depth, DEEPEST)
        count = step.begin(self._states, self.memory, whole(fresh), deepest, draft_depth)
        self._fed = count
        return count

    def asked(self) -> Nodes:
        """Return the nodes that the draft is fed in this step; the last ones, as many as `begin` or
        `scored` returned, are to be scored now."""
        return Nodes(
            tuple(listed(self._fed_token, self._fed)),
            tuple(listed(self._fed_parent, self._fed)),
            tuple(listed(self._fed_depth, self._fed)),
        )

    def scored(self, ids: np.ndarray, scores: np.ndarray, shares: np.ndarray) -> int:
        """Take in the draft's ranking of what follows the nodes asked for, each [nodes, ranks]."""
        if ids.shape[1] > RANKS:
            raise ValueError(f"{ids.shape[1]} ranks a node: at most {RANKS}")
        self._widen(int(ids.max()))
        count = step.scored(
            self._states, self.memory, ids.shape[1], whole(ids), real(scores), real(shares)
        )
        self._fed += count
        return count

    def proposal(self) -> Nodes:
        """Return the part of the tree that is worth verifying."""
        size = self._proposed = step.propose(self._states)
        return Nodes(
            tuple(listed(self._token, size)),
            tuple(listed(self._parent, size)),
            tuple(listed(self._depth, size)),
            ("", *(SOURCES[kind] for kind in listed(self._kind, size)[1:])),
            tuple(listed(self._chance, size)),
        )

    def read_of(self, path: Sequence[int]) -> list[int]:
        """Return where nodes of a path stand among those fed to the draft, as far as they do."""
        return listed(self._read, step.read_of(self._states, whole(path)))

    def learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn: `chosen[i]` is the target's token after node i of the proposal (-1: not known),
        `path` the nodes kept, root first. Where nothing is recycled, `chosen` is not looked at: the
        text itself says what the target chose."""
        if self.shape.recycle:
            self._learn(chosen, path)
        else:
            self._unlearned = list(path)

    def _learn_from_text(self, following: int) -> None:
        """Learn from the step before, whose last kept node this token followed."""
        path, chosen = self._unlearned, [-1] * self._proposed
        for node, after in pairwise(path):
            chosen[node] = int(self._token[after])
        chosen[path[-1]] = following
        self._unlearned = []
        self._learn(chosen, path)

    def _learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        self._widen(max(chosen))
        learning.learn(self._states, self.memory, self._proposed, whole(chosen), whole(path))

    def remembered(self) -> DrafterMemory:
        """Return what outlives a prompt."""
        s, ring = self.state, self.memory.ring
        text = tuple(int(token) for token in self.memory.text[: s.n])
        numbers = range(max(1, int(s.recycled) - RING + 1), int(s.recycled) + 1)
        bases = [(number % RING) * ENTRY for number in numbers]
        entries = tuple(tuple(int(v) for v in ring[b : b + CONTEXT + 1]) for b in bases)
        rates = tuple(float(getattr(s, name)) for name in learning.RATES)
        return DrafterMemory(text, entries, rates)

    def restore(self, remembered: DrafterMemory) -> None:
        """Remember exactly this."""
        s = self.state
        self.forget()
        for name, value in zip(learning.RATES, remembered.rates, strict=False):
            setattr(s, name, value)
        entries = remembered.recycled[-RING + 1 :]
        self._widen(max([-1, *remembered.text, *(t for entry in entries for t in entry)]))
        self._lengthen(len(remembered.text))
        append(s, self.memory, whole(remembered.text))
        ring, newest = self.memory.ring, self.memory.newest
        for number, entry in enumerate(entries, start=1):
            base = number * ENTRY
            for i, value in enumerate(entry):
                ring[base + i] = value
            ring[base + CONTEXT + 1] = newest[entry[0]]
            newest[entry[0]] = number
        s.recycled = len(entries)

    def _lengthen(self, needed: int) -> None:
        """Make room for that many tokens of text."""
        m, size = self.memory, len(self.memory.text)
        while size < needed:
            size *= 2
        if size > len(m.text):
            self.memory = m._replace(text=longer(m.text, size, -1), prev=longer(m.prev, size, -1))

    def _widen(self, token: int) -> None:
        """Make room for a token id."""
        if token < self._vocab:
            return
        m, size = self.memory, self._vocab
        while size <= token:
            size *= 2
        self._vocab = size
        self.memory = m._replace(
            head=longer(m.head, size, -1),
            newest=longer(m.newest, size, 0),
            slot=longer(m.slot, size, 0, wide=True),
        )
