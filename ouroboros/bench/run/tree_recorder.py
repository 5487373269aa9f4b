"""Record the draft trees of a run and the target's prediction at every node.

A prediction's key is the whole sequence before it (*prefix key*), so a replay finds it even if the
same sequence occurs in a different tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ouroboros.calls import Steps
from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.decode import Drafter

PrefixKey = tuple[int, tuple[int, ...]]
"""A sequence, as (length of its common prefix with the recorded sequence, its tokens after it)."""


class ProposedTree(NamedTuple):
    """One step: the draft `tree`, its accepted `path` (nodes, root first), and `then`, the token
    that the target chose after the path."""

    tree: TokenTree
    path: tuple[int, ...]
    then: int


def prefix_keys(base: int, tree: TokenTree, recorded: Sequence[int]) -> Iterator[PrefixKey]:
    """Yield, for each node of a tree, the key of the sequence that ends with the node. The root is
    the last of the `base` tokens of the sequence so far, with which the `recorded` tokens begin.

    >>> tree = TokenTree.chain(5, [6, 7]).graft([(9, 1)], at=1)
    >>> list(prefix_keys(2, tree, [4, 5, 6, 7, 8]))
    [(2, ()), (3, ()), (4, ()), (3, (9,)), (3, (9, 1))]
    """
    keys: list[PrefixKey] = [(base, ())]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        along, off = keys[parent]
        agrees = not off and along < len(recorded) and recorded[along] == token
        keys.append((along + 1, ()) if agrees else (along, (*off, token)))
    return iter(keys)


class Recorder:
    """A drafter that passes every call on to the wrapped `drafter` and records each step."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self._prompt: tuple[int, ...] = ()
        self._steps: list[tuple[int, TokenTree, list[int], list[int]]] = []
        self._base = 0

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def reset(self, choose: TokenSelector) -> None:
        """Clear the record and reset the wrapped drafter for a new prompt."""
        self._prompt, self._steps = (), []
        self.drafter.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree | Steps[TokenTree]:
        """Return the wrapped drafter's tree."""
        self._base = len(tokens)
        self._prompt = self._prompt or tuple(tokens)
        return self.drafter.propose(tokens, budget)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Record a step and pass it to the wrapped drafter."""
        self._steps.append((self._base, tree, list(chosen), list(path)))
        self.drafter.observe(tree, chosen, path)

    def predictions(self, new_tokens: Sequence[int]) -> dict[PrefixKey, int]:
        """Return the target's predictions, by prefix key, that prompt and `new_tokens` do not
        contain: after draft nodes that differ from them, and after their last token."""
        recorded, found = [*self._prompt, *new_tokens], {}
        for base, tree, chosen, _ in self._steps:
            keys = list(prefix_keys(base, tree, recorded))
            for node in tree.logit_nodes:
                along, off = keys[node]
                if off or along >= len(recorded):
                    found[along, off] = chosen[node]
        return found

    def trees(self) -> list[ProposedTree]:
        """Return the recorded trees with their accepted paths, one per step."""
        return [ProposedTree(tree, tuple(p), c[p[-1]]) for _, tree, c, p in self._steps]
