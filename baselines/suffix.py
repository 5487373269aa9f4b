"""SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975; its code: snowflakedb/ArcticInference).

For every length m, one draft is made from what followed earlier occurrences of the last m tokens.
Its score is its expected number of accepted tokens. The draft with the best score is proposed; if
the score is below a threshold, an optional draft model drafts instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Literal, NamedTuple

from ouroboros.baselines.speculative import Speculative
from ouroboros.baselines.suffix_tree import END, SOURCE, Position, SuffixTree, check_state

from ouroboros.calls import Steps
from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree
from ouroboros.drafters.pool import check_range, token_ids
from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence


class Draft(NamedTuple):
    """Draft tokens, the index of each one's parent among them (-1: the root), and `score`, the sum
    of their estimated probabilities: the expected number of accepted tokens."""

    tokens: list[int]
    parents: Sequence[int]
    score: float


class SuffixDecoding:
    """Drafts from a suffix tree over prompt and output, and over past outputs with `state` "task".

    After a match of m tokens, it drafts up to `factor` x m + `offset` tokens, at most `max_tokens`:
    the most frequent continuation, or with `branches` a tree of the most probable ones. Nodes that
    are reached with a probability below `least` are left out. If `draft` is given and the best
    score is below `threshold` (None: gamma), the draft model drafts up to `gamma` tokens instead,
    like `Speculative` with `confidence`. Only accepted tokens enter the suffix tree. `depth` and
    `memory` are those of `SuffixTree`.

    Differences from the published code: the current suffix does not count as an occurrence, and a
    chain that reaches the end of the text continues with its own tokens, so a loop in the text is
    drafted several times over.
    """

    def __init__(
        self,
        draft: CachedModel | None = None,
        *,
        max_tokens: int,
        factor: float = 1.0,
        offset: float = 0.0,
        least: float = 0.1,
        branches: bool = False,
        depth: int = 24,
        state: Literal["cold", "task"] = "cold",
        memory: int = 1 << 16,
        gamma: int = 4,
        confidence: float = 0.0,
        threshold: float | None = None,
    ) -> None:
        check_range(1, max_tokens=max_tokens, gamma=gamma)
        check_range(0, factor=factor)
        check_range(0, 1, least=least, confidence=confidence)
        check_state(state)
        self.draft = draft
        self.max_tokens = max_tokens
        self.factor, self.offset, self.least = factor, offset, least
        self.branches = branches
        self.carries_state = state == "task"
        self.threshold = gamma if threshold is None else threshold
        self._chain = draft and Speculative(draft, gamma=gamma, confidence=confidence)
        self._text = SuffixTree(depth=depth)
        self._past = SuffixTree(depth=depth, memory=memory)
        self._positions: list[Position] = []
        self._accepted: list[int] = []  # draft tokens accepted in the last step
        self._prompt = 0
        self._seen = 0

    @property
    def draft_sequence(self) -> CachedSequence | None:
        """The draft model's sequence, if there is a draft model."""
        return self._chain.draft_sequence if self._chain else None

    def _output(self) -> list[int]:
        return [*self._text.text[self._prompt :], *self._accepted] if self._seen else []

    def state_dict(self) -> dict:
        """Return the state kept between prompts: {"past": the earlier outputs, separated by END,
        "output": the current prompt's output}."""
        return {"past": self._past.text, "output": self._output()}

    def load_state_dict(self, state: Mapping) -> None:
        """Restore the outputs of `state_dict`."""
        self._past.load(token_ids(state["past"], least=END))
        self._text.load(token_ids(state["output"]))
        self._prompt, self._accepted, self._seen = 0, [], len(state["output"])

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt. With `state` "task", first add the previous prompt's output to the stored
        outputs, without its last token, which `propose` never received."""
        if self.carries_state and (output := self._output()):
            self._past.extend(output)
            self._past.close()
        self._text.forget()
        self._positions, self._accepted, self._seen = [], [], 0
        if self._chain:
            self._chain.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree | Steps[TokenTree]:
        """Return the draft with the best score or, if that is below the threshold, the draft
        model's `Steps`. Return the root alone if no suffix occurred before or, with `branches`, in
        the first step after a long prompt."""
        unread, fresh = not self._seen, tokens[self._seen :]
        if unread:
            self._prompt = len(tokens)
        self._text.extend(fresh)
        if self._past.text:
            for token in fresh:
                self._positions = self._past.follow(self._positions, token)
        self._seen = len(tokens)
        if unread and self.branches and read_alone(tokens):
            return TokenTree.chain(tokens[-1], ())
        room = min(self.max_tokens, budget - 1)
        positions = [self._text.position(node) for node in self._text.active]
        draft = max(
            self._best(self._text, positions, room),
            self._best(self._past, self._positions, room),
            key=lambda draft: draft.score,
        )
        if self._chain and draft.score < self.threshold:
            return self._chain.propose(tokens, budget)
        parents = (-1, *(parent + 1 for parent in draft.parents))
        source = ("", *[SOURCE] * len(draft.tokens))
        return TokenTree((tokens[-1], *draft.tokens), parents, source=source).pruned(budget - 1)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Store the accepted tokens for `reset`."""
        self._accepted = [tree.tokens[node] for node in path[1:]]

    def _best(self, tree: SuffixTree, positions: Sequence[Position], room: int) -> Draft:
        """Return the draft of at most `room` tokens with the highest score over all match lengths;
        ties go to the longest. `positions[m - 1]` is where the last m tokens end in `tree`.

        Skips a match that occurs as often as a longer one (its continuations are the same). Stops
        at a match whose draft cannot have a higher score.
        """
        best, seen = Draft([], [], 0.0), -1
        draw = branches if self.branches else chain
        for length in range(len(positions), 0, -1):
            limit = min(room, int(length * self.factor + self.offset + 1e-6))
            if best.score >= limit:
                break
            position = positions[length - 1]
            occurrences = tree.counts[position.node]
            if occurrences != seen:
                draft = draw(tree, position, limit, self.least)
                best = draft if draft.score > best.score else best
            seen = occurrences
        return best


def chain(tree: SuffixTree, position: Position, limit: int, least: float) -> Draft:
    """Return the most frequent continuation of the n-gram at `position`: up to `limit` tokens,
    while its probability is at least `least`. At the end of the text the draft repeats its own
    tokens."""
    tokens: list[int] = []
    (node, at), score, share = position, 0.0, 1.0
    while at < 0 and len(tokens) < limit:
        child = tree.best[node]
        share *= tree.counts[child] / tree.followed[node]
        if share < least or tree.tokens[child] == END:
            return Draft(tokens, range(-1, len(tokens) - 1), score)
        tokens.append(tree.tokens[child])
        score += share
        node, at = tree.position(child)
    text, end = tree.text, len(tree.text)
    while len(tokens) < limit:
        token = text[at] if at < end else tokens[at - end]
        if token == END:
            break
        tokens.append(token)
        score += share
        at += 1
    return Draft(tokens, range(-1, len(tokens) - 1), score)


def branches(tree: SuffixTree, position: Position, limit: int, least: float) -> Draft:
    """Return a tree of the `limit` most probable nodes after the n-gram at `position`; each has a
    probability of at least `least`."""
    tokens: list[int] = []
    parents: list[int] = []
    score, order = 0.0, count()
    heap: list[tuple[float, int, Position, int]] = []

    def grow(position: Position, share: float, node: int) -> None:
        total = tree.followed[position.node] if position.at < 0 else 1
        for occurrences, below in tree.after(position):
            likely = share * occurrences / total
            if likely >= least:
                heapq.heappush(heap, (-likely, next(order), below, node))

    grow(position, 1.0, -1)
    while heap and len(tokens) < limit:
        share, _, position, parent = heapq.heappop(heap)
        tokens.append(tree.token(position))
        parents.append(parent)
        score -= share
        grow(position, -share, len(tokens) - 1)
    return Draft(tokens, parents, score)
