"""Phrases made of what the target predicted at nodes of a verified tree (paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ouroboros.drafters.pool import PhrasePool
from ouroboros.tree import TokenTree


class Hung(NamedTuple):
    """A phrase of the pool that was hung below a node, whole."""

    node: int
    phrase: tuple[int, ...]


def correct(pool: PhrasePool, tree: TokenTree, chosen: Sequence[int], hung: Iterable[Hung]) -> None:
    """Replace each phrase that was verified to its end by what the target predicted along it.

    `chosen[i]` is the target's token after node i. The phrases are taken in the order given, so
    the last becomes the newest.
    """
    for start, phrase in hung:
        node, predicted = start, [chosen[start]]
        for token in phrase[:-1]:
            below = tree.children.get((node, token))
            if below is None:
                break
            node = below
            predicted.append(chosen[node])
        if len(predicted) == len(phrase):
            pool.replace(tree.tokens[start], phrase, predicted)


def add_agreements(
    pool: PhrasePool, tree: TokenTree, chosen: Sequence[int], tail: range, *, least: int
) -> None:
    """Make phrases where the target agrees with a rejected tail at least `least` times in a row."""
    for node in tail:
        last, end = node, min(tail.stop - 1, node + pool.phrase_len - 1)
        while last < end and chosen[last] == tree.tokens[last + 1]:
            last += 1
        if last - node >= least:
            pool.add(tree.tokens[node], [chosen[n] for n in range(node, last + 1)])
