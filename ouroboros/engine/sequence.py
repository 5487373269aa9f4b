"""The state of one sequence on one model: its cached tokens, the tree last scored, its counters.

A model scores and accepts trees of a sequence that it is given; everything that differs from one
sequence to the next lives here. A model has one set of cache slots, which its sequences take over
from each other; those that are scored together have slots of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

import torch

from ouroboros.engine.cache import SlotCache
from ouroboros.select import TokenSelector
from ouroboros.trace import first_mismatch
from ouroboros.tree import TokenTree


class ModelCounters(NamedTuple):
    """What a sequence has cost its model so far.

    `calls` counts calls of `score`, `forwards` those of the model itself (a long stretch of text is
    fed by forwards of its own), `scored` the tree nodes that were fed and `caught_up` the tokens of
    the sequence that were, the prompt included. `busy_s` are the seconds from a call's start to the
    arrival of its result, and `wait_s` the part of them spent waiting for it.
    """

    calls: int = 0
    forwards: int = 0
    scored: int = 0
    caught_up: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    def since(self, before: ModelCounters) -> ModelCounters:
        """Return what was counted after `before`."""
        return ModelCounters(*(now - then for now, then in zip(self, before, strict=True)))  # type: ignore[arg-type]


@dataclass(eq=False)
class CachedSequence:
    """One sequence on one model; made by `model.new_sequence()`, changed by the model alone.

    The model reads the text from its token number `start` on. `tokens` are those whose keys and
    values lie in slots 0, 1, ...; the nodes of `tree`, the tree last scored (None once a path of it
    was accepted), lie from slot `base` on. `slots` are its own (None: it uses its model's). The
    other fields are those of `ModelCounters`.
    """

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    tree: TokenTree | None = None
    base: int = 0
    calls: int = 0
    forwards: int = 0
    scored: int = 0
    caught_up: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    slots: SlotCache | None = None

    @property
    def counters(self) -> ModelCounters:
        """The counters as they are now."""
        return ModelCounters(*attrgetter(*ModelCounters._fields)(self))

    @property
    def held(self) -> int:
        """How many tokens are cached."""
        return len(self.tokens)

    def first_read(self, tokens: Sequence[int], limit: int | None) -> int:
        """Return from which token on a call on `tokens` reads the text: as before, or its last
        `limit` tokens alone where more than these are to be read."""
        start = self.start if self.start < len(tokens) else 0
        unread = len(tokens) - start - self.held
        return start if limit is None or unread <= limit else len(tokens) - limit

    def clear(self) -> None:
        """Forget everything that is cached; the counters stay."""
        self.tokens, self.tree, self.start = [], None, 0

    def take_over(self, other: CachedSequence) -> None:
        """Take the cache slots, and the tokens in them, from another sequence of the same model."""
        self.tokens, self.tree = other.tokens, None
        other.clear()

    def shared_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of `tokens`, its last left out, are cached."""
        limit = min(len(self.tokens), len(tokens) - 1)
        cached, start = self.tokens[:limit], list(tokens[:limit])
        different = first_mismatch(cached, start) if cached != start else None
        return limit if different is None else different

    def reusable_nodes(self, base: int, tree: TokenTree, most: int) -> int:
        """Return how many of the first nodes of a tree rooted at slot `base` need not be fed again:
        up to `most` that the last tree began with too, before the first one whose logits are
        wanted."""
        last = self.tree
        if last is None or base != self.base:
            return 0
        limit = min(len(last), tree.logit_nodes[0], most)
        for node in range(limit):
            if tree.tokens[node] != last.tokens[node] or tree.parents[node] != last.parents[node]:
                return node
        return limit


class TreeModel(Protocol):
    """A model that scores token trees: `CachedModel`, or one that imitates it in replays and tests.

    Subclasses define `score`; the rest may stay as it is here where nothing is cached.
    """

    max_len: int
    vocab_size: int
    prefill_limit: int | None = None
    """How many tokens of a text it reads at once, its last ones; None: all. For drafts: a target
    reads its whole prompt."""

    def room(self, sequence: CachedSequence, tokens: Sequence[int]) -> int:
        """Return how many positions there are after `tokens`."""
        return self.max_len - len(tokens) + sequence.first_read(tokens, self.prefill_limit)

    def new_sequence(self) -> CachedSequence:
        """Return the state of a sequence of which nothing was scored yet."""
        return CachedSequence()

    def empty(self) -> None:
        """Forget what is cached, so that the next sequence is fed from its first token."""
        return

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the logits after the tree's `logit_nodes`, [len(tree.logit_nodes), width]."""
        ...

    def score_together(
        self, calls: Sequence[tuple[CachedSequence, Sequence[int], TokenTree]]
    ) -> list[torch.Tensor]:
        """Return the result of `score` for several sequences, each (sequence, tokens, tree)."""
        return [self.score(*call) for call in calls]

    def why_not_together(self) -> str | None:
        """Return why this model cannot score several sequences in one call; None if it can."""
        return None

    def accept(self, sequence: CachedSequence, path: Sequence[int]) -> None:
        """Keep the path (node indices, root first) of the tree last scored; forget the rest."""
        sequence.tree = None

    def roll(
        self, sequence: CachedSequence, tokens: Sequence[int], count: int, choose: TokenSelector
    ) -> list[int]:
        """Return the `count` tokens that plain decoding puts after `tokens`, one call each."""
        text = list(tokens)
        for _ in range(count):
            root = TokenTree.chain(text[-1], ())
            text += choose(self.score(sequence, text, root), text, root)
            self.accept(sequence, [0])
        return text[len(tokens) :]

    def adapt_selector(self, choose: TokenSelector, *, own_rule: bool) -> TokenSelector:
        """Return `choose`, able to read this model's logits. `own_rule` says that it is a drafter's
        own rule, which may read the logits of the whole tree."""
        return choose
