"""A suffix tree with counts, grown token by token: what followed each string, and how often.

A string that occurred once is a leaf that points into the text; it is opened by one token when it
occurs again, so only what repeats takes nodes. Invariant: for every string of at most `depth`
tokens that occurred twice there is a node, and its count is that of its occurrences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

END = -1  # stands in the text after each text that is closed


class PrefixKey(NamedTuple):
    """Where a string stands: at a node, or (with `at`) on the text below a leaf."""

    node: int
    at: int = -1  # index into the text of the token that comes next; -1: see the node's children


ROOT = PrefixKey(0)


class SuffixTree:
    """Counts of all strings of at most `depth` tokens, and of what followed them.

    `active[m - 1]` is the node of the last m tokens, for each m up to the longest suffix that
    occurred before. About 1 kB a token on ordinary text, and `depth` times 0.3 kB a token where
    everything occurs twice. `memory`: texts are forgotten, the oldest first, when all that are
    closed hold more tokens.
    """

    def __init__(self, *, depth: int, memory: int = 1 << 16) -> None:
        if depth < 2 or memory < 1:
            raise ValueError(f"depth {depth} must be at least 2 and memory {memory} at least 1")
        self.depth = depth
        self.memory = memory
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.text: list[int] = []
        self.active: list[int] = []
        self.tokens = [END]  # by node: its last token,
        self.counts = [0]  # its occurrences,
        self.followed = [0]  # those of them that something followed,
        self.starts = [0]  # where in the text its first occurrence goes on,
        self.best = [-1]  # its most frequent child, the newest of equals,
        self.children: list[dict[int, int]] = [{}]  # all of them; a leaf has none

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self.text.append(token)
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
        """End the text: what comes next does not follow it."""
        self.text.append(END)
        self.active = []
        if len(self.text) > self.memory:
            kept = self.text[-self.memory // 2 :]
            texts = kept[kept.index(END) + 1 :] if kept.count(END) > 1 else kept
            self.forget()
            self._rebuild(texts)

    def _rebuild(self, texts: Sequence[int]) -> None:
        start = 0
        for index, token in enumerate(texts):
            if token == END:
                self.extend(texts[start:index])
                self.text.append(END)
                self.active, start = [], index + 1

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
        """Count one more occurrence; a string met for the second time is opened."""
        self.counts[child] += 1
        if self.children[child] is _NONE and length < self.depth:
            start = self.starts[child]
            self.children[child] = {}
            self.best[child] = self._leaf(child, self.text[start], start + 1)
            self.followed[child] = 1

    def place(self, node: int) -> PrefixKey:
        """Return where a node stands: below a leaf the text itself goes on."""
        return PrefixKey(node) if self.children[node] else PrefixKey(node, self.starts[node])

    def follow(self, places: Sequence[PrefixKey], token: int) -> list[PrefixKey]:
        """Return where the suffixes of another text stand after one more token: `places` are those
        of its last 1, 2, ... tokens, up to the longest that occurs here."""
        found = []
        for node, at in (ROOT, *places[: self.depth - 2]):
            if at < 0:
                child = self.children[node].get(token)
                if child is None:
                    break
                found.append(self.place(child))
            elif self.text[at] == token:
                found.append(PrefixKey(node, at + 1))
            else:
                break
        return found

    def after(self, place: PrefixKey) -> list[tuple[int, PrefixKey]]:
        """Return the places one token on, each with its count."""
        node, at = place
        if at < 0:
            children = self.children[node].items()
            return [(self.counts[c], self.place(c)) for token, c in children if token != END]
        if at < len(self.text) and self.text[at] != END:
            return [(1, PrefixKey(node, at + 1))]
        return []

    def token(self, place: PrefixKey) -> int:
        """Return the last token of the string that stands at a place."""
        node, at = place
        return self.tokens[node] if at < 0 else self.text[at - 1]


_NONE: dict[int, int] = {}  # the children of every leaf; never written to
