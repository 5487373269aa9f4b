"""What drafting with a small model needs: a text of its own to go on with, and how sure it was."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree


class Scratch:
    """A drafter's own copy of the growing sequence, on which a small model may go on.

    It is brought up to date, not copied, so a step costs the same at every length.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._known = 0

    def reset(self) -> None:
        """Forget the sequence."""
        self._text, self._known = [], 0

    def at(self, tokens: Sequence[int]) -> list[int]:
        """Return the sequence, which has only grown since the last call (or `reset`), as a list
        that may be appended to until the next call."""
        del self._text[self._known :]
        self._text += tokens[self._known :]
        self._known = len(tokens)
        return self._text


class Rank(NamedTuple):
    """The draft's choice after a node, its runner-up, and the probability of each."""

    token: int
    share: float
    second: int
    second_share: float


class Watched(TokenSelector):
    """A choice that remembers, along the path it accepts, how sure the draft was of each token."""

    def __init__(self, choose: TokenSelector) -> None:
        self.choose = choose
        self.temperature, self.noise_seed = choose.temperature, choose.noise_seed
        self.ranks: list[Rank] = []

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        ids, _, shares = self.choose.ranked(logits, tokens, tree)
        chosen = [-1] * len(tree)
        for node, token in zip(tree.logit_nodes, ids[:, 0].tolist(), strict=True):
            chosen[node] = token
        for node in tree.longest_match(chosen):
            row = bisect_left(tree.logit_nodes, node)  # asked nodes ascend
            (first, second), (share, next_share) = ids[row].tolist(), shares[row].tolist()
            self.ranks.append(Rank(first, share, second, next_share))
        return ids[:, 0].tolist()

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        return self.choose.ranked(logits, tokens, tree, count)

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        return self.choose.scores(logits, tokens, tree)
