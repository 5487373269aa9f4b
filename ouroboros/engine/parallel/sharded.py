"""Score one tree on several devices: each rank scores some branches; ranks exchange chosen tokens.

This is lookahead parallelism (Fu et al., ICML 2024, section 3.3) for any tree. Every rank has the
whole model and its own cache, and runs the same loop on the same tokens. It scores one subtree of
each tree (some branches with their ancestors) and sends the tokens chosen there to the others. If
only other ranks have scored an accepted token, a rank feeds it in its next call, before its
subtree, like all uncached tokens. Keys and values are never sent.

Invariant: after each exchange all ranks have identical data and take the same step. Each message
has a checksum of the call, which detects a rank that is out of step.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch
from numpy.typing import ArrayLike

from ouroboros.core.select import Ranked, TokenSelector
from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import TokenTree
from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.ranks import RankLost, Ranks
from ouroboros.engine.parallel.tree_split import Part, assign_owners, cut
from ouroboros.engine.sequence import CachedSequence, TreeModel

CallMs = Callable[[int, int], float]
"""A function (tokens fed, tokens before them) -> milliseconds of a call."""


@dataclass(eq=False, kw_only=True)
class ShardedSequence(CachedSequence):
    """A sequence on several ranks. Rank r has cached the sequence's first `cached[r]` tokens;
    `tail` has the next tokens, which other ranks have cached and this rank has not. `whole` is the
    tree last scored, `parts` are its subtrees, one per rank."""

    ranks: int = 1
    cached: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    whole: TokenTree | None = None
    parts: list[Part] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cached = [len(self.tokens)] * self.ranks

    @property
    def held(self) -> int:
        """See `CachedSequence.held`: the same on every rank."""
        return max(self.cached)

    def clear(self) -> None:
        """See `CachedSequence.clear`."""
        super().clear()
        self.cached, self.tail = [0] * self.ranks, []

    def take_over(self, other: CachedSequence) -> None:
        """See `CachedSequence.take_over`."""
        self.cached, self.tail = other.cached, other.tail  # type: ignore[attr-defined]
        super().take_over(other)

    def loads(self, tokens: Sequence[int]) -> list[int]:
        """Return how many of `tokens[:-1]` each rank must feed before its subtree."""
        shared = self.shared_prefix(tokens)
        if shared == len(self.tokens):
            different = first_mismatch(self.tail, tokens[shared:-1][: len(self.tail)])
            shared += len(self.tail) if different is None else different
        return [len(tokens) - 1 - min(cached, shared) for cached in self.cached]


class ShardedModel(CachedModel):
    """A loaded model, `own`, whose trees are scored by all `ranks`.

    `score` returns the logits of this rank's nodes only; `adapt_selector` returns a selector that
    can read them. `call_ms` predicts the time of a call (None: taken as the number of tokens fed).
    If splitting a tree does not lower the predicted time, every rank scores the whole tree, but
    still selects tokens at its own nodes only.

    `exchanges` counts the exchanges between ranks, `exchanged_bytes` the bytes of the columns that
    they gather; `logits` are those of this rank's nodes in the last call.
    """

    def __init__(self, own: CachedModel, ranks: Ranks, *, call_ms: CallMs | None = None) -> None:
        self.__dict__.update(own.__dict__)
        self.own, self.ranks = own, ranks
        self.exchanges = self.exchanged_bytes = self._checksum = 0
        self._call_ms = call_ms or (lambda nodes, context: nodes)
        self.resident: ShardedSequence = self.new_sequence()  # type: ignore[assignment]
        self.logits: torch.Tensor | None = None
        self._failed: Exception | None = None

    def alone(self) -> CachedModel:
        """Return this rank's unsharded model, with an empty cache."""
        self.own.empty()
        return self.own

    def new_sequence(self, cached: Sequence[int] = ()) -> ShardedSequence:
        """See `CachedModel.new_sequence`; `cached` tokens count as cached on every rank."""
        return self._begun(ShardedSequence(tokens=list(cached), ranks=self.ranks.size))

    @torch.inference_mode()
    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Score this rank's subtree and return the logits after its owned nodes; see
        `CachedModel.score`. If that fails, the selector raises an error on every rank."""
        assert isinstance(sequence, ShardedSequence)
        self._give_slots(sequence)
        whole, tokens = tokens, self._read(sequence, tokens, tree)
        loads = sequence.loads(tokens)
        nodes = cut(tree, loads)
        most = max(load + len(part) for load, part in zip(loads, nodes, strict=True))
        every = max(loads) + len(tree)
        if not self._call_ms(most, len(tokens)) < self._call_ms(every, len(tokens)):
            nodes = [tuple(range(len(tree)))] * len(loads)
        sequence.whole, sequence.parts = tree, assign_owners(tree, nodes)
        words = [len(tokens), *tree.tokens, *tree.parents, *tree.logit_nodes, *loads]
        self._checksum = zlib.crc32(np.array(words).tobytes())
        part = self.part.of(tree)
        self._failed = None
        try:
            self.logits = super().score(sequence, whole, part)
        except Exception as error:
            self._failed, self.logits = error, torch.empty(0, self.width)
        sequence.cached, sequence.tail = [len(tokens) - 1] * self.ranks.size, []
        return self.logits

    def accept(self, sequence: CachedSequence, path: Sequence[int]) -> None:
        """Keep this rank's nodes of the path; see `CachedModel.accept`."""
        assert isinstance(sequence, ShardedSequence) and sequence.whole is not None
        held = [len(list(takewhile(set(part.nodes).__contains__, path))) for part in sequence.parts]
        own, kept = sequence.parts[self.ranks.rank].nodes, held[self.ranks.rank]
        super().accept(sequence, [bisect_left(own, node) for node in path[:kept]])
        sequence.tail = [sequence.whole.tokens[node] for node in path[kept : max(held)]]
        sequence.cached = [old + new for old, new in zip(sequence.cached, held, strict=True)]
        sequence.whole = None

    roll = TreeModel.roll  # one call per token, because the ranks exchange each token

    def adapt_selector(self, choose: TokenSelector, *, own_rule: bool) -> TokenSelector:
        """Return a selector that gathers the tokens chosen on all ranks. Raises `ValueError` for a
        drafter's own acceptance rule, which may read the logits of the whole tree."""
        if own_rule:
            raise ValueError(
                "a drafter with a rule of its own (verification=rejection) reads the whole tree's "
                "logits, which parallel=tree leaves on several devices: use verification=shared"
            )
        return GatheringSelector(choose, self)

    @property
    def part(self) -> Part:
        """The subtree that this rank scored in the last call."""
        return self.resident.parts[self.ranks.rank]

    def gather(
        self, select: Callable[[TokenTree], Sequence[ArrayLike]], tree: TokenTree
    ) -> list[np.ndarray]:
        """Gather columns from all ranks: arrays [logit nodes, ...], in the order of the tree's
        logit nodes.

        `select` takes this rank's subtree and returns the columns of its logit nodes. A failed rank
        raises its own error; the others raise a `RuntimeError` that names it, or `RankLost` if a
        rank scores another tree.
        """
        parts, own, columns = self.resident.parts, self.part, None
        try:
            if self._failed is not None:
                raise self._failed
            columns = [np.asarray(column)[: len(own.owned)] for column in select(own.of(tree))]
        except Exception as error:
            self._failed = error
        every = self.ranks.all_gather((self._checksum, columns))
        self.exchanges += 1
        self.exchanged_bytes += sum(rows.nbytes for _, found in every for rows in found or ())
        if any(checksum != self._checksum for checksum, _ in every):
            raise RankLost("the ranks no longer score the same tree")
        failed = [rank for rank, (_, found) in enumerate(every) if found is None]
        if failed:
            self.empty()  # the ranks' caches may differ
            raise self._failed or RuntimeError(f"rank {failed[0]} failed")
        order = np.argsort([node for part in parts for node in part.owned])
        return [
            np.concatenate(rows)[order]
            for rows in zip(*(found for _, found in every if found is not None), strict=True)
        ]


class GatheringSelector(TokenSelector):
    """Selects tokens with `choose`. With a sharded model's logits, each rank selects the tokens at
    its own nodes and sends them to the others."""

    def __init__(self, choose: TokenSelector, model: ShardedModel) -> None:
        self.choose, self.model = choose, model
        self.context_free = choose.context_free
        self.scores = choose.scores  # type: ignore[method-assign]
        self.temperature, self.noise_seed = choose.temperature, choose.noise_seed

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        if logits is not self.model.logits:
            return self.choose(logits, tokens, tree)
        (chosen,) = self.model.gather(lambda part: [self.choose(logits, tokens, part)], tree)
        return chosen.tolist()

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        if logits is not self.model.logits:
            return self.choose.ranked(logits, tokens, tree, count)
        return Ranked(
            *self.model.gather(lambda part: self.choose.ranked(logits, tokens, part, count), tree)
        )
