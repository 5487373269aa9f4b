"""Lookahead decoding (Fu et al., ICML 2024): phrases from a Jacobi window.

The window guesses many positions at once and refines the guesses in every step. Its columns become
phrases (n-grams); phrases that start at the last token are verified as branches of the tree.

Invariant: if the last token is at position p, cell (r, c) of the window is at position p + r + c.
Cell (0, 0) is the last token itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ouroboros.core.select import TokenSelector
from ouroboros.core.tree import TokenTree, TreeBuilder
from ouroboros.drafters.pool import CONTEXT, PhrasePool, check_range


class Window:
    """The Jacobi window: `size` columns and up to `ngram_size - 1` rows of guesses. Its cells are
    probes: tree nodes that are scored but never accepted.

    With size 3 and ngram_size 4, a full window has these nodes below the root `*`::

        row 0    *  a  b        a below *, b below a
        row 1    c  d  e        c below *, d below a, e below b
        row 2    f  g  h        f below c, g below d, h below e

    and the predictions at f, g, h are the next row.
    """

    def __init__(self, *, size: int, ngram_size: int) -> None:
        self.size = size
        self.height = ngram_size - 1
        self.rows: list[list[int]] = []
        self._last: list[int] = []

    def start(self, tokens: Sequence[int]) -> None:
        """Fill row 0 with random tokens of the sequence; each later step adds a row."""
        draw = random.Random(f"{len(tokens)}-{tokens[-1]}")
        columns = self.size + max(0, self.height - 1)
        self.rows = [[tokens[-1], *draw.choices(tokens, k=columns - 1)]]

    def add_to(self, tree: TreeBuilder) -> None:
        """Add the window's cells to the tree as probes; request logits for the last row only."""
        if not self.rows:
            return
        first = len(tree)
        above = [0, *range(first, first + len(self.rows[0]) - 1)]
        tokens, parents = self.rows[0][1:], above[:-1]
        for row in self.rows[1:]:
            parents += above[: len(row)]
            below = first + len(tokens)
            tokens = tokens + row
            above = list(range(below, below + len(row)))
        tree.add_probes(tokens, parents, "window")
        tree.read.update(node for node in above if node)
        self._last = above

    def observe(self, chosen: Sequence[int], following: int) -> list[tuple[int, ...]]:
        """Append the predictions after the last row as a new row; `chosen[i]` is the target's token
        after node i. Shift the window to start at `following`, the token after the accepted path.

        Return the n-gram of each column: its key in the pool, then `height` tokens. Return an empty
        list until the window is full.
        """
        if not self.rows:
            return []
        fresh = [max(0, chosen[node]) for node in self._last]  # -1: no id may follow
        if len(self.rows) < self.height:
            self.rows = [[*row[1:]] for row in [*self.rows, fresh]]
            self.rows[0][0] = following
            return []
        ngrams = [tuple(column) for column in zip(*self.rows, fresh, strict=True)]
        self.rows = [*self.rows[1:], fresh]
        self.rows[0][0] = following
        return ngrams


class Lookahead:
    """The lookahead drafter: a Jacobi window and up to `verification_set_size` phrases per step.

    - `window_size`, `ngram_size`, `verification_set_size`: W, N and G of the paper. Without a
      window (0) all phrases come from `pool_from_prompt`; with `verification_set_size` 0 no phrase
      is verified
    - `pool_from_prompt`: also add the phrases of prompt and output to the pool
    - `pool`: a pool that keeps its phrases from prompt to prompt (None: a new one, emptied for each
      prompt)
    - `pool_while_filling`: whether to propose phrases before the window is full

    Raises `ValueError` for settings out of range.
    """

    def __init__(
        self,
        *,
        window_size: int,
        ngram_size: int,
        verification_set_size: int,
        pool_from_prompt: bool = True,
        pool: PhrasePool | None = None,
        pool_while_filling: bool = True,
    ) -> None:
        check_range(0, window_size=window_size, verification_set_size=verification_set_size)
        check_range(2, ngram_size=ngram_size)
        self.branches = verification_set_size
        self.pool_from_prompt = pool_from_prompt
        self.pool_while_filling = pool_while_filling
        self.own_pool = pool is None
        if pool is None:
            pool = PhrasePool(phrase_len=ngram_size - 1, per_key=max(1, self.branches))
        self.pool = pool
        self.window = Window(size=window_size, ngram_size=ngram_size)
        self.reads_rejected = window_size > 0
        self._seen = 0
        self._proposed: TokenTree | None = None

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt: empty the window, and the pool unless it was given."""
        self.window.rows = []
        self._seen = 0
        if self.own_pool:
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the root with phrases as branches and the window's cells as probes."""
        if self.pool_from_prompt:
            self.pool.add_text(tokens, self._seen)
            self._seen = len(tokens)
        root = tokens[-1]
        if self.window.size:
            if not self.window.rows:
                self.window.start(tokens)
            self.window.rows[0][0] = root
        tree = TreeBuilder(root)
        filled = not self.window.size or len(self.window.rows) >= self.window.height
        if self.pool_while_filling or filled:
            phrases = self.pool.get(root, self.branches, before=tokens[-1 - CONTEXT : -1])
            tree.graft([phrase[: budget - 1] for phrase in phrases], source="pool")
        self.window.add_to(tree)
        self._proposed = tree.build()
        return self._proposed

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Add the window's n-grams to the pool. If the scored tree is not the proposed one, because
        it was pruned at the end of the context, restart the window instead."""
        if tree is not self._proposed:
            self.window.rows = []
            return
        following = chosen[path[-1]]
        for ngram in self.window.observe(chosen, following):
            self.pool.add(ngram[0], ngram[1:])
