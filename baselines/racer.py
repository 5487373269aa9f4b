"""RACER (Zhang et al., Findings of ACL 2026, arXiv 2604.14885): fill a tree with n-grams of the
context, then with the successor rows of Token Recycling."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Literal

from ouroboros.baselines import recycling
from ouroboros.baselines.recycling import WIDTH, TokenRecycling
from ouroboros.baselines.suffix_tree import END, SOURCE, Position, SuffixTree

from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree, TreeBuilder
from ouroboros.drafters.pool import check_range, token_ids


class Racer(TokenRecycling):
    """Drafts up to `nodes` nodes: n-gram continuations first, then tokens from successor rows.

    N-grams: the most frequent continuations of the last m tokens, for each m from `shortest` to
    `ngram` - 1. Match and continuation have at most `ngram` tokens in total. Successor rows:
    breadth first; the root gets `breadth` children. Child j (from 0) of a node with b children gets
    b / 2^(j + 1) children (b / 2^j if the node is a child of the root), at least 1.

    `read_prompt` learns successors from the prompt's text, which is never scored as tree nodes.
    `state` "task" keeps n-grams and rows between prompts; `memory` is that of `SuffixTree`.
    """

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
        check_range(1, nodes=nodes)
        check_range(1, ngram - 1, shortest=shortest)
        check_range(0, WIDTH, breadth=breadth)
        super().__init__(read_prompt=read_prompt, state=state)
        self.nodes = nodes
        self.ngram, self.shortest, self.breadth = ngram, shortest, breadth
        self.tree = SuffixTree(depth=ngram, memory=memory)
        self._seen = 0

    def state_dict(self) -> dict:
        """Return the state kept between prompts: {"rows": {str(token id): successor ids},
        "text": all texts, separated by END}."""
        return {**super().state_dict(), "text": self.tree.text}

    def load_state_dict(self, state: Mapping) -> None:
        """Restore the rows and texts of `state_dict`."""
        super().load_state_dict(state)
        self.tree.load(token_ids(state["text"], least=END))

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt. If `state` is "cold", clear n-grams and rows; else end the last text."""
        super().reset(choose)
        if not self.carries_state:
            self.tree.forget()
        elif self.tree.text:
            self.tree.close()
        self._seen = 0

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return a tree of n-gram continuations and successors of the last token; the root alone in
        the first step after a long prompt."""
        read_first = self._begin(tokens)
        self.tree.extend(tokens[self._seen :])
        self._seen = len(tokens)
        builder = TreeBuilder(tokens[-1])
        if not read_first:
            self._retrieve(builder)
            self._recycle(builder)
        return builder.build().pruned(budget - 1)

    def _retrieve(self, builder: TreeBuilder) -> None:
        """Add continuations of all matching suffixes until the tree is full, the most frequent
        first; ties go to the smaller depth, then to the longer match. Equal continuations share
        nodes."""
        tree, order = self.tree, count()
        heap: list[tuple[int, int, int, int, Position, int]] = []

        def push(position: Position, node: int, length: int) -> None:
            if length < self.ngram:
                for occurrences, below in tree.after(position):
                    depth = builder.depths[node] + 1
                    entry = (-occurrences, depth, next(order), node, below, length + 1)
                    heapq.heappush(heap, entry)

        for length in range(len(tree.active), self.shortest - 1, -1):
            push(tree.position(tree.active[length - 1]), 0, length)
        while heap and len(builder) <= self.nodes:
            _, _, _, parent, position, length = heapq.heappop(heap)
            node = self._child(builder, parent, tree.token(position), SOURCE)
            push(position, node, length)

    def _recycle(self, builder: TreeBuilder) -> None:
        """Add successors breadth first until the tree is full."""
        queue = deque([(0, self.breadth)])
        while queue and len(builder) <= self.nodes:
            node, breadth = queue.popleft()
            left = breadth if builder.depths[node] == 1 else breadth // 2
            for token in self.rows.get(builder.tokens[node], ())[:breadth]:
                if token < 0 or len(builder) > self.nodes:  # -1 pads rows of small vocabularies
                    break
                child = self._child(builder, node, token, recycling.SOURCE)
                queue.append((child, max(1, left)))
                left //= 2

    def _child(self, builder: TreeBuilder, node: int, token: int, source: str) -> int:
        """Return a node's child with this token; add it if missing."""
        builder.graft([(token,)], node, source=source)
        return builder.children[node, token]
