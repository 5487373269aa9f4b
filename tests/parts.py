"""Trees scored in several calls, as a drafter scores a growing tree; peers on one prompt."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from ouroboros import CachedModel, DecodeTrace, TokenTree, argmax


def first(tree: TokenTree, count: int) -> TokenTree:
    """The tree of the first nodes."""
    return TokenTree(tree.tokens[:count], tree.parents[:count])


def in_parts(
    score: Callable, tokens: Sequence[int], tree: TokenTree, cuts: Iterable[int]
) -> torch.Tensor:
    """Score a tree up to each cut in turn by `score(tokens, tree)`: the logits after every node."""
    rows, known = [], 0
    for cut in [*sorted(cuts), len(tree)]:
        part = first(tree, cut).with_logits_at(range(known, cut))
        logits = score(tokens, part)
        assert len(logits) == cut - known
        rows.append(logits.clone())
        known = cut
    return torch.cat(rows)


class InParts(CachedModel):
    """A model that scores every tree in random parts."""

    draw = random.Random(5)

    def score(self, sequence, tokens, tree):
        cuts = {n for n in range(1, len(tree)) if self.draw.random() < 0.3}
        score = partial(super().score, sequence)
        return in_parts(score, tokens, tree, cuts)[list(tree.logit_nodes)]


def run_peer(peer, target, prompt, *, choose=argmax, stop=None, **limits) -> DecodeTrace:
    """Generate for one prompt with another engine; `limits` has max_new and eos."""
    (trace,) = peer.run(target, [prompt], chooses=[choose], stops=[stop], **limits)
    return trace
