"""The state of a sequence on one model: cached tokens, the tree last scored, counters.

Every call of the model receives this state. A model has one set of cache slots, which one sequence
uses at a time; sequences that are scored in one joint call have cache slots of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import Protocol

import torch

from ouroboros.core.select import Head, TokenSelector
from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import TokenTree
from ouroboros.engine.cache import SlotCache


@dataclass(eq=False)
class ModelCounters:
    """Work that a model has done for a sequence so far.

    `calls` counts calls of `score`, and one per token of `roll`; `forwards` counts forward passes
    (a long prompt takes several); `scored` counts tree nodes fed; `caught_up` counts sequence
    tokens fed, prompt included. `busy_s` sums the seconds of calls until their selected tokens are
    on the host; `wait_s` is the part spent waiting for the device (on a CPU: selecting tokens).
    """

    calls: int = 0
    forwards: int = 0
    scored: int = 0
    caught_up: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0

    def since(self, before: ModelCounters) -> ModelCounters:
        """Return the work since `before`, an earlier reading of the counters."""
        return ModelCounters(*map(sub, _values(self), _values(before)))

    @property
    def counters(self) -> ModelCounters:
        """The current values of the counters."""
        return ModelCounters(*_values(self))


_values = attrgetter(*ModelCounters.__dataclass_fields__)
"""All counters in one C call, because host code runs with cold caches after a model call."""


@dataclass(eq=False, kw_only=True)
class CachedSequence(ModelCounters):
    """One sequence on one model, as returned by `model.new_sequence()`. Do not change its fields:
    the model's methods and `calls.predict` update them.

    - `start`: index of the first token of the sequence that the model reads; above 0 only for a
      draft model with a `prefill_limit`
    - `tokens`: the cached tokens, from `start` on, in slots 0, 1, ...
    - `tree`: the tree last scored (None after a path was accepted); its nodes are in slots from
      `base` on
    - `slots`: the sequence's own cache slots after a joint call (None: it uses its model's)
    - `unfed`: whether `tokens` count as cached although they were not fed; no other sequence may
      take them over
    - all other fields: see `ModelCounters`
    """

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    tree: TokenTree | None = None
    base: int = 0
    slots: SlotCache | None = None
    unfed: bool = False

    @property
    def held(self) -> int:
        """The number of cached tokens."""
        return len(self.tokens)

    def clear(self) -> None:
        """Drop all cached tokens; keep the counters."""
        self.tokens, self.tree, self.start, self.unfed = [], None, 0, False

    def take_over(self, other: CachedSequence) -> None:
        """Take over the cache slots of another sequence of the same model, with their tokens."""
        self.tokens, self.tree = other.tokens, None
        other.clear()

    def shared_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens of `tokens[:-1]` are cached."""
        limit = min(len(self.tokens), len(tokens) - 1)
        cached = self.tokens if limit == len(self.tokens) else self.tokens[:limit]
        start = tokens[:limit] if isinstance(tokens, list) else list(tokens[:limit])
        different = first_mismatch(cached, start) if cached != start else None
        return limit if different is None else different

    def reusable_nodes(self, base: int, tree: TokenTree, most: int) -> int:
        """Return how many leading nodes of `tree` are cached if its root is at slot `base`: those
        that equal the nodes of the last tree, up to the first logit node and at most `most`."""
        last = self.tree
        if last is None or base != self.base:
            return 0
        limit = min(len(last), tree.logit_nodes[0], most)
        for node in range(limit):
            if tree.tokens[node] != last.tokens[node] or tree.parents[node] != last.parents[node]:
                return node
        return limit


Call = tuple[CachedSequence, Sequence[int], TokenTree]
"""The arguments of `score`: a sequence, its tokens, and the tree to score."""


class TreeModel(Protocol):
    """A model that scores token trees: `CachedModel`, or a scripted model in replays and tests.

    Subclasses define `score`; the other methods here serve models without a cache.
    """

    max_len: int
    vocab_size: int
    prefill_limit: int | None = None
    """Maximum number of uncached tokens that a draft model feeds at once; it skips earlier ones.
    None: no limit, as for every target."""
    head: Head | None = None
    """The ids that a draft model with a trimmed head scores; None: all, as for every target."""

    def room(self, sequence: CachedSequence, tokens: Sequence[int]) -> int:
        """Return how many positions of the model's context are left after `tokens`."""
        return self.max_len - len(tokens) + self.first_read(sequence, tokens)

    def first_read(self, sequence: CachedSequence, tokens: Sequence[int]) -> int:
        """Return the index of the first token that a call on `tokens` reads.

        That is the sequence's `start` (0 if `tokens` ends before it). But with a `prefill_limit`, a
        call that would feed more uncached tokens or read more than `max_len` tokens reads only the
        last `prefill_limit` tokens (at most half of `max_len`)."""
        limit, start = self.prefill_limit, sequence.start if sequence.start < len(tokens) else 0
        read = len(tokens) - start
        if limit is None or (read - sequence.held <= limit and read <= self.max_len):
            return start
        if limit < 1:
            raise ValueError(f"prefill_limit is {limit}; choose at least 1, or None")
        return len(tokens) - min(limit, max(1, self.max_len // 2))

    def unread(self, sequence: CachedSequence, tokens: Sequence[int]) -> int:
        """Return how many uncached tokens a call on `tokens` must feed before its tree's nodes.
        Scripted models cache nothing: they return 0 after their first call."""
        if sequence.calls and not sequence.held:
            return 0
        start = self.first_read(sequence, tokens)
        return len(tokens) - start - (sequence.held if start == sequence.start else 0)

    def new_sequence(self) -> CachedSequence:
        """Return the state of a new sequence."""
        return CachedSequence()

    def empty(self) -> None:
        """Empty the cache, so that the next sequence is fed from its first token."""
        return

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the logits after the tree's `logit_nodes`, [len(tree.logit_nodes), vocab]."""
        ...

    def score_all(self, calls: Sequence[Call]) -> list[torch.Tensor]:
        """Return the result of `score` for several sequences."""
        return [self.score(*call) for call in calls]

    def why_not_together(self) -> str | None:
        """Return why this model cannot score several sequences in one call; None if it can."""
        return None

    def accept(self, sequence: CachedSequence, path: Sequence[int]) -> None:
        """Keep the path (nodes, root first) of the tree last scored; drop its other nodes."""
        sequence.tree = None

    def roll(
        self, sequence: CachedSequence, tokens: Sequence[int], count: int, choose: TokenSelector
    ) -> list[int]:
        """Return the next `count` tokens of standard decoding, with one call each."""
        text = list(tokens)
        for _ in range(count):
            root = TokenTree.chain(text[-1], ())
            text += choose(self.score(sequence, text, root), text, root)
            self.accept(sequence, [0])
        return text[len(tokens) :]

    def adapt_selector(self, choose: TokenSelector, *, own_rule: bool) -> TokenSelector:
        """Return the selector to use for this model's logits, here `choose` itself. `own_rule`:
        whether `choose` is a drafter's acceptance rule (`DrafterCapabilities.rule`), which may read
        the logits of all nodes."""
        return choose
