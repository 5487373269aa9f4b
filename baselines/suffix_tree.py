"""A suffix tree with counts, extended token by token: it gives the continuations of any n-gram.

An n-gram that occurred once ends in a leaf, which points to its continuation in the text. When it
occurs again, the leaf gets a child for the next token. Invariant: every n-gram of at most `depth`
tokens that occurred twice has a node with its number of occurrences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ouroboros.drafters.pool import check_range

END = -1  # separator after each text that has ended
SOURCE = "prompt"  # source of nodes that are looked up in the text


class Position(NamedTuple):
    """Where an n-gram ends in a `SuffixTree`: at a node (`at` is -1), or below the leaf `node`,
    before index `at` of the text."""

    node: int
    at: int = -1  # text index of the next token; -1: the node's children are next


ROOT = Position(0)


class SuffixTree:
    """Counts of all n-grams of at most `depth` tokens and of their continuations.

    `active[m - 1]` is the node of the last m tokens, for each m up to the longest suffix that
    occurred before. A token of ordinary text takes about 1 kB of memory, at most `depth` x 0.3 kB.
    If all texts together exceed `memory` tokens when one ends, the oldest are dropped.
    """

    def __init__(self, *, depth: int, memory: int = 1 << 16) -> None:
        check_range(2, depth=depth)
        check_range(1, memory=memory)
        self.depth = depth
        self.memory = memory
        self.forget()

    def forget(self) -> None:
        """Clear all text."""
        self.text: list[int] = []
        self.active: list[int] = []
        self.tokens = [END]  # by node: its last token
        self.counts = [0]  # occurrences
        self.followed = [0]  # occurrences with a next token
        self.starts = [0]  # text index after its first occurrence
        self.best = [-1]  # most frequent child; ties go to the newest
        self.children: list[dict[int, int]] = [{}]  # children by token; a leaf has none

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, and count their n-grams; END tokens separate texts."""
        for token in tokens:
            self.text.append(token)
            if token == END:
                self.active = []
                continue
            longer = []
            for length, node in enumerate((0, *self.active)):
                child = self.children[node].get(token)
                self.followed[node] += 1
                if child is None:
                    child = self._leaf(node, token, len(self.text))
                else:
                    self._visit(child, length + 1)
                    longer.append(child)
                best = self.best[node]
                if best < 0 or self.counts[child] >= self.counts[best]:
                    self.best[node] = child
            self.active = longer[: self.depth - 1]

    def close(self) -> None:
        """End the current text, so that later tokens do not continue it."""
        self.extend((END,))
        if len(self.text) > self.memory:
            kept = self.text[-self.memory // 2 :]
            self.load(kept[kept.index(END) + 1 :] if kept.count(END) > 1 else kept)

    def load(self, texts: Sequence[int]) -> None:
        """Replace all text by `texts`, which END tokens separate."""
        self.forget()
        self.extend(texts)

    def _leaf(self, node: int, token: int, start: int) -> int:
        leaf = len(self.tokens)
        self.children[node][token] = leaf
        self.tokens.append(token)
        self.counts.append(1)
        self.followed.append(0)
        self.starts.append(start)
        self.best.append(-1)
        self.children.append(_NONE)
        return leaf

    def _visit(self, child: int, length: int) -> None:
        """Count an occurrence of a node, an n-gram of `length` tokens; at the second occurrence,
        give a leaf its first child."""
        self.counts[child] += 1
        if self.children[child] is _NONE and length < self.depth:
            start = self.starts[child]
            self.children[child] = {}
            self.best[child] = self._leaf(child, self.text[start], start + 1)
            self.followed[child] = 1

    def position(self, node: int) -> Position:
        """Return where the n-gram of a node ends: at the node or, for a leaf, in the text."""
        return Position(node) if self.children[node] else Position(node, self.starts[node])

    def follow(self, positions: Sequence[Position], token: int) -> list[Position]:
        """Return where the suffixes of another text end in this tree, after `token` was appended to
        that text: entry m - 1 is for its last m tokens, up to the longest suffix found. `positions`
        is the result for the text without `token`."""
        longer = []
        for node, at in (ROOT, *positions[: self.depth - 2]):
            if at < 0:
                child = self.children[node].get(token)
                if child is None:
                    break
                longer.append(self.position(child))
            elif self.text[at] == token:
                longer.append(Position(node, at + 1))
            else:
                break
        return longer

    def after(self, position: Position) -> list[tuple[int, Position]]:
        """Return (count, position) of each one-token extension of the n-gram at `position`."""
        node, at = position
        if at < 0:
            children = self.children[node].items()
            return [(self.counts[c], self.position(c)) for token, c in children if token != END]
        if at < len(self.text) and self.text[at] != END:
            return [(1, Position(node, at + 1))]
        return []

    def token(self, position: Position) -> int:
        """Return the last token of the n-gram that ends at `position`."""
        node, at = position
        return self.tokens[node] if at < 0 else self.text[at - 1]


_NONE: dict[int, int] = {}  # the children of every leaf; never written to


def check_state(state: str) -> None:
    """Raise `ValueError` for a state that is neither "cold" nor "task"."""
    if state not in ("cold", "task"):
        raise ValueError(f"state {state!r} is not one of cold, task")
