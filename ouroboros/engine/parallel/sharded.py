"""One tree over several devices: each rank scores some branches, and only choices travel.

Lookahead parallelism (Fu et al., ICML 2024, section 3.3) for any tree. Every rank runs the same
loop on the same tokens, with the whole model and a cache of its own. Of the tree it scores a part,
whole branches and the trunk above them, and tells the others which tokens were chosen there. What
is accepted but lies on another rank is fed before the next part, in the same call, as is whatever
is not cached. No key or value travels.

Invariant: after a gathered choice every rank knows the same, down to the bit, so that their loops
take the same step; each message carries a checksum of the question, which shows where they do not.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ouroboros.engine.model import CachedModel
from ouroboros.engine.parallel.partition import Nodes, Part, Split, cut, owners
from ouroboros.engine.parallel.ranks import RankLost, Ranks
from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree

CallMs = Callable[[int, int], float]
"""What a call costs, by the tokens that it feeds and those before them."""
HEADER = np.dtype([("question", "<u4"), ("failed", "<u4")])
CHOICE = np.dtype("<i4")


class ShardedModel(CachedModel):
    """A loaded model whose trees are scored by all `ranks`; it takes the place of `own`.

    `score` returns the logits of this rank's nodes alone: only a `Gathered` choice can read them,
    which `decode.stream` makes of any choice. `call_ms` says what a call costs; where cutting a
    tree saves nothing by it, every rank scores the whole tree (and still chooses for some nodes
    only). Without it, fewer nodes are taken to cost less. `split` cuts a tree.

    `exchanges` counts the gathered calls, `exchanged_bytes` the bytes of all ranks' messages.
    """

    def __init__(
        self,
        own: CachedModel,
        ranks: Ranks,
        *,
        call_ms: CallMs | None = None,
        split: Split = cut,
    ) -> None:
        self.__dict__.update(own.__dict__)
        self.own = own
        self.ranks = ranks
        self.exchanges = 0
        self.exchanged_bytes = 0
        self._call_ms = call_ms or (lambda nodes, context: nodes)
        self._split = split
        self._known: list[int] = []
        self.tokens = self._known
        self._tail: list[int] = []
        self._cached = [0] * ranks.size
        self._whole: TokenTree | None = None
        self._parts: list[Part] = []
        self._question = 0
        self._logits: torch.Tensor | None = None
        self._failed: Exception | None = None

    def alone(self) -> CachedModel:
        """Return the model as it was, for this rank by itself, its cache empty."""
        self.own.tokens = []
        self.own._tree = None
        return self.own

    @torch.inference_mode()
    def score(self, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        """Score this rank's part; return the logits that follow its own nodes. See
        `CachedModel.score`. What fails here is raised by the choice, on every rank."""
        self.check(tokens, tree)
        loads = self._loads(tokens)
        self._parts = owners(tree, self._nodes(tree, loads, len(tokens)))
        self._whole = tree
        words = [len(tokens), *tree.tokens, *tree.parents, *tree.logit_nodes, *loads]
        self._question = zlib.crc32(np.array(words).tobytes())
        part = self.part.of(tree)
        self._failed = None
        try:
            self._logits = super().score(tokens, part)
        except Exception as error:
            self._failed, self._logits = error, torch.empty(0, self.width)
        self._cached, self._tail = [len(tokens) - 1] * self.ranks.size, []
        return self._logits

    def accept(self, path: Sequence[int]) -> None:
        """Keep what this rank has of the path; see `CachedModel.accept`."""
        assert self._whole is not None, "score() comes first"
        having = [_having(part.nodes, path) for part in self._parts]
        own, kept = self.part.nodes, having[self.ranks.rank]
        super().accept([bisect_left(own, node) for node in path[:kept]])
        self._tail = [self._whole.tokens[node] for node in path[kept : max(having)]]
        self._cached = [old + new for old, new in zip(self._cached, having, strict=True)]
        self._whole = None

    def roll(self, tokens: Sequence[int], count: int, choose: TokenSelector) -> list[int]:
        """As `CachedModel.roll`, but all ranks agree on each token."""
        text = list(tokens)
        for _ in range(count):
            root = TokenTree.chain(text[-1], ())
            text += choose(self.score(text, root), text, root)
            self.accept([0])
        return text[len(tokens) :]

    def prepare(self, context: int) -> None:
        """See `CachedModel.prepare`."""
        super().prepare(context)
        self._whole = None

    @property
    def part(self) -> Part:
        """What this rank scored in the last call."""
        return self._parts[self.ranks.rank]

    def answers(self, logits: torch.Tensor) -> bool:
        """Return whether these logits are a rank's share of the last call's."""
        return logits is self._logits

    def gather(
        self, rows: Callable[[TokenTree], np.ndarray], dtype: np.dtype, tree: TokenTree
    ) -> np.ndarray:
        """Return what all ranks say of the nodes that are asked of a tree, [asked] of `dtype`.

        `rows` gives it for the part that this rank scored. Where a rank has failed, all do: it with
        its own error, the others with a `RuntimeError` that names it.
        """
        most = max(len(part.owned) for part in self._parts)
        message = np.zeros(HEADER.itemsize + most * dtype.itemsize, dtype=np.uint8)
        head = message[: HEADER.itemsize].view(HEADER)
        own = self.part
        try:
            if self._failed is not None:
                raise self._failed
            found = rows(own.of(tree))[: len(own.owned)]
            message[HEADER.itemsize :].view(dtype)[: len(found)] = found
        except Exception as error:
            self._failed = error
        head["question"], head["failed"] = self._question, self._failed is not None
        every = self.ranks.exchange(message)
        self.exchanges += 1
        self.exchanged_bytes += len(message) * self.ranks.size
        self._check_answers([row[: HEADER.itemsize].view(HEADER)[0] for row in every])
        whole = np.empty(len(tree.logit_nodes), dtype=dtype)
        for part, row in zip(self._parts, every, strict=True):
            at = np.searchsorted(tree.logit_nodes, part.owned)
            whole[at] = row[HEADER.itemsize :].view(dtype)[: len(part.owned)]
        return whole

    def _check_answers(self, heads: Sequence[np.void]) -> None:
        """Raise where the ranks were asked different things, or one of them failed."""
        if any(head["question"] != self._question for head in heads):
            raise RankLost(
                "the ranks no longer draft alike: give parallel_draft=first, which drafts on one"
            )
        failed = [rank for rank, head in enumerate(heads) if head["failed"]]
        if failed:
            self.tokens = []  # what the ranks have in their caches may differ by now
            raise self._failed or RuntimeError(f"rank {failed[0]} failed")

    def _loads(self, tokens: Sequence[int]) -> list[int]:
        """Return how many tokens of the sequence each rank has to feed before its part."""
        if self.tokens is not self._known:  # given anew from outside, on every rank alike
            self._cached, self._tail = [len(self.tokens)] * self.ranks.size, []
            self._known = self.tokens
        shared = self._shared_prefix(tokens)
        if shared == len(self.tokens):
            for token, other in zip(self._tail, tokens[shared:-1], strict=False):
                if token != other:
                    break
                shared += 1
        return [len(tokens) - 1 - min(cached, shared) for cached in self._cached]

    def _nodes(self, tree: TokenTree, loads: Sequence[int], context: int) -> list[Nodes]:
        """Return each rank's nodes: its branches, or all where cutting saves nothing."""
        if len(loads) > 1:
            parts = self._split(tree, loads)
            most = max(load + len(part) for load, part in zip(loads, parts, strict=True))
            if self._call_ms(most, context) < self._call_ms(max(loads) + len(tree), context):
                return parts
        return [tuple(range(len(tree)))] * len(loads)


class Gathered(TokenSelector):
    """A choice that also reads logits of which each rank has a share: it is made where they are,
    and told to all. Other logits it reads as `choose` does."""

    def __init__(self, choose: TokenSelector, models: Sequence[ShardedModel]) -> None:
        self.choose = choose
        self.models = models
        self.blind = getattr(choose, "blind", False)
        self.temperature, self.noise_seed = choose.temperature, choose.noise_seed

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        model = self._scored(logits)
        if model is None:
            return self.choose(logits, tokens, tree)
        return model.gather(
            lambda part: np.array(self.choose(logits, tokens, part)), CHOICE, tree
        ).tolist()

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        model = self._scored(logits)
        if model is None:
            return self.choose.ranked(logits, tokens, tree, count)
        kinds = (("ids", CHOICE), ("scores", "<f8"), ("shares", "<f8"))
        dtype = np.dtype([(name, kind, (count,)) for name, kind in kinds])

        def rows(part: TokenTree) -> np.ndarray:
            own = self.choose.ranked(logits, tokens, part, count)
            table = np.empty(len(own.ids), dtype=dtype)
            for name, values in zip(Ranked._fields, own, strict=True):
                table[name] = values
            return table

        found = model.gather(rows, dtype, tree)
        return Ranked(found["ids"].astype(np.int64), found["scores"], found["shares"])

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        return self.choose.scores(logits, tokens, tree)

    def _scored(self, logits: torch.Tensor) -> ShardedModel | None:
        return next((model for model in self.models if model.answers(logits)), None)


def gathered(
    plain: TokenSelector, rule: TokenSelector, models: Sequence[CachedModel | None]
) -> TokenSelector:
    """Return the loop's choice `rule`, made to read the logits of those models that are sharded.

    Raises `ValueError` for a rule of a drafter's own instead of the `plain` choice: it may follow
    one path through the whole tree's logits.
    """
    shared = [model for model in models if isinstance(model, ShardedModel)]
    if not shared:
        return rule
    if rule is not plain:
        raise ValueError(
            "a drafter with a rule of its own (verification=rejection) reads the whole tree's "
            "logits, which parallel=tree leaves on several devices: use verification=shared"
        )
    return Gathered(rule, shared)


def _having(nodes: Nodes, path: Sequence[int]) -> int:
    """Return how many of a path's nodes, from the root on, are among these (ascending)."""
    for kept, node in enumerate(path):
        at = bisect_left(nodes, node)
        if at == len(nodes) or nodes[at] != node:
            return kept
    return len(path)
