"""RACER (Zhang et al., Findings of ACL 2026, arXiv 2604.14885): n-grams of the context first, then
the successors' matrix of Token Recycling, breadth first, in what is left of the tree."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Literal

from ouroboros.baselines import recycling
from ouroboros.baselines.recycling import WIDTH, Successors
from ouroboros.baselines.suffix import SOURCE, check_state
from ouroboros.baselines.suffix_tree import PrefixKey, SuffixTree

from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.select import Ranked, TokenSelector
from ouroboros.tree import TokenTree, TreeBuilder


class Racer:
    """Drafts `nodes` nodes: the most frequent continuations of the last `shortest` to `ngram` - 1
    tokens, at most `ngram` tokens long with them, and the target's own former choices.

    The matrix's part begins with `breadth` children of the root; child j of a node with breadth b
    gets half of b, halved j times (the root's children pass on the whole of theirs), at least 1.
    It learns from accepted text and from every row that the target computed, rejected ones too, but
    not from the prompt's rows, which are never scored; `read_prompt` takes what followed each token
    in the prompt instead. `state` "task" keeps both between prompts; `memory` as in `SuffixTree`.
    """

    draft: CachedModel | None = None
    reads_rejected = True
    ranks = WIDTH

    def __init__(
        self,
        *,
        nodes: int = 64,
        ngram: int = 10,
        shortest: int = 2,
        breadth: int = WIDTH,
        read_prompt: bool = True,
        state: Literal["cold", "task"] = "cold",
        memory: int = 1 << 16,
    ) -> None:
        if nodes < 1 or not 1 <= shortest < ngram or not 0 <= breadth <= WIDTH:
            raise ValueError(
                f"nodes {nodes} must be at least 1, shortest {shortest} at least 1 and below "
                f"ngram {ngram}, and breadth {breadth} 0 to {WIDTH}"
            )
        check_state(state)
        self.nodes = nodes
        self.ngram, self.shortest, self.breadth = ngram, shortest, breadth
        self.read_prompt = read_prompt
        self.state = state
        self.tree = SuffixTree(depth=ngram, memory=memory)
        self.successors = Successors()
        self._seen = 0

    def reset(self, choose: TokenSelector) -> None:
        """Forget all with state "cold"; otherwise the text ends."""
        if self.state == "cold":
            self.tree.forget()
            self.successors = Successors()
        elif self.tree.text:
            self.tree.close()
        self._seen = 0

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the tree below the last token."""
        if not self._seen and self.read_prompt:
            self.successors.read(tokens)
        unread = not self._seen
        self.tree.extend(tokens[self._seen :])
        self._seen = len(tokens)
        builder = TreeBuilder(tokens[-1])
        if unread and read_alone(tokens):
            return builder.build()
        self._retrieve(builder)
        self._recycle(builder)
        return builder.build().pruned(budget - 1)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Nothing to learn of the choices alone."""

    def observe_ranked(self, tree: TokenTree, ranked: Ranked, path: Sequence[int]) -> None:
        """Keep the target's first tokens after every node."""
        self.successors.learn(tree, ranked, path)

    def _retrieve(self, builder: TreeBuilder) -> None:
        """Hang what followed the matching suffixes, the most frequent first, then the nearest, then
        that of the longest match. Nodes that several suffixes propose count once."""
        tree, order = self.tree, count()
        heap: list[tuple[int, int, int, int, PrefixKey, int]] = []

        def push(place: PrefixKey, node: int, length: int) -> None:
            if length < self.ngram:
                for occurrences, below in tree.after(place):
                    depth = builder.depths[node] + 1
                    entry = (-occurrences, depth, next(order), node, below, length + 1)
                    heapq.heappush(heap, entry)

        for length in range(len(tree.active), self.shortest - 1, -1):
            push(tree.place(tree.active[length - 1]), 0, length)
        while heap and len(builder) <= self.nodes:
            _, _, _, parent, place, length = heapq.heappop(heap)
            node = self._hang(builder, parent, tree.token(place), SOURCE)
            push(place, node, length)

    def _recycle(self, builder: TreeBuilder) -> None:
        rows = self.successors.rows
        queue = deque([(0, self.breadth)])
        while queue and len(builder) <= self.nodes:
            node, breadth = queue.popleft()
            left = breadth if builder.depths[node] == 1 else breadth // 2
            for token in rows.get(builder.tokens[node], ())[:breadth]:
                if token < 0 or len(builder) > self.nodes:  # -1 where the vocabulary ends
                    break
                child = self._hang(builder, node, token, recycling.SOURCE)
                queue.append((child, max(1, left)))
                left //= 2

    def _hang(self, builder: TreeBuilder, node: int, token: int, source: str) -> int:
        known = builder.children.get((node, token))
        if known is None:
            builder.graft([(token,)], node, source=source)
            return len(builder) - 1
        return known
