"""Ouroboros as published: drafting phrase by phrase (Zhao et al., EMNLP 2024, arXiv 2402.13720).

The small model drafts with lookahead decoding of its own, so each of its calls yields several
tokens (phrases speed up drafting). Phrases of the pool are hung below the draft's end, and the
target verifies them in the same call (phrases lengthen the draft). What the target predicted along
the way, rejected or not, becomes phrases again (verification makes phrases), and the pool may
outlive the prompt.

Invariant: the pool only ever changes *what is proposed*; `decode` alone decides what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ouroboros.decode import extend
from ouroboros.drafters import learning
from ouroboros.drafters.drafting import Scratch
from ouroboros.drafters.learning import Hung
from ouroboros.drafters.lookahead import Lookahead
from ouroboros.drafters.pool import PhrasePool
from ouroboros.engine.model import CachedModel
from ouroboros.growing import Growing
from ouroboros.select import TokenSelector, argmax
from ouroboros.tree import TokenTree


class Published:
    """The published drafter: gamma, W = window_size, N = ngram_size, G = verification_set_size and
    K = topk suffixes.

    `window_size` 0 drafts without a Jacobi window, `topk` 0 does not lengthen, `recycle` False
    takes no phrases from verification. `pool_state`: "cold" empties the pool for each prompt,
    "task" carries it over the run, "loaded" starts each prompt from the pool given.
    """

    def __init__(
        self,
        draft: CachedModel,
        *,
        gamma: int = 12,
        window_size: int = 20,
        ngram_size: int = 7,
        verification_set_size: int = 20,
        topk: int = 3,
        pool_state: str = "cold",
        pool: PhrasePool | None = None,
        recycle: bool = True,
        seed: int = 0,
    ) -> None:
        if gamma < 1 or topk < 0:
            raise ValueError(f"gamma {gamma} must be at least 1 and topk {topk} at least 0")
        self.draft: CachedModel | None = draft
        self.model = draft
        self.gamma, self.topk, self.recycle = gamma, topk, recycle
        self.reads_rejected = recycle
        self.ngram_size = ngram_size
        self.pool_state = pool_state
        if pool is None:
            per_key = max(1, verification_set_size, topk)
            pool = PhrasePool(phrase_len=ngram_size - 1, per_key=per_key, use_context=False)
        elif pool.phrase_len != ngram_size - 1:
            raise ValueError(
                f"the pool holds phrases of {pool.phrase_len} tokens, ngram_size asks for "
                f"{ngram_size - 1}"
            )
        self.pool = pool
        self._loaded = pool.copy() if pool_state == "loaded" else None
        self.inner = Lookahead(
            window_size=window_size,
            ngram_size=ngram_size,
            verification_set_size=verification_set_size,
            pool_from_prompt=False,
            pool=pool,
            pool_while_filling=False,
            seed=seed,
        )
        self._choose: TokenSelector = argmax
        self._chain = 0
        self._hung: list[Hung] = []
        self._scratch = Scratch()

    def restore(self, pool: PhrasePool) -> None:
        """Hold exactly what a pool of the same sizes holds."""
        self.pool.restore(pool)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt; the pool is emptied, kept or restored as `pool_state` says."""
        self._choose = choose
        self.inner.reset(choose)
        self._scratch.reset()
        if self._loaded is not None:
            self.pool.restore(self._loaded)
        elif self.pool_state == "cold":
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the draft as a chain, with phrases of the pool below its end."""
        drafted, sources = self._draft(tokens, budget - 1)
        tree = Growing(tokens[-1])
        tree.chain(drafted, sources)
        self._chain = end = len(drafted)
        phrases = self.pool.get(tree.tokens[end], self.topk)
        self._hung = [Hung(end, phrase) for phrase in phrases]
        tree.graft([phrase[: budget - 1 - end] for phrase in phrases], end, source="suffix")
        return TokenTree.grown(tree)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Make phrases of what the target predicted (paper, section 3.3)."""
        if not self.recycle:
            return
        chain = min(self._chain, len(tree) - 1)
        kept = sum(node <= chain for node in path)
        if kept > chain:
            learning.correct(self.pool, tree, chosen, reversed(self._hung))
        else:
            tail = range(kept, chain + 1)
            learning.add_agreements(self.pool, tree, chosen, tail, least=self.ngram_size - 2)

    def _draft(self, tokens: Sequence[int], room: int) -> tuple[list[int], list[str]]:
        """Draft up to gamma tokens, and more where the last call gave more.

        Their sources are "draft", and "phrase" where the draft model verified one.
        """
        sequence, sources = self._scratch.at(tokens), []
        for record in extend(self.model, self.inner, sequence, room, choose=self._choose):
            sources += ["phrase" if name == "pool" else "draft" for name in record.sources]
            if len(sources) >= self.gamma:
                break
        return sequence[len(tokens) :], sources
