"""Ouroboros as published: drafting phrase by phrase (Zhao et al., EMNLP 2024, arXiv 2402.13720).

The small model drafts with lookahead decoding of its own, so each of its calls yields several
tokens (phrases speed up drafting). Phrases of the pool are appended to the draft's end, and the
target verifies them in the same call (phrases lengthen the draft). The target's predictions along
the way, rejected or not, become phrases again (verification makes phrases), and the pool may
outlive the prompt.

Invariant: the pool only changes *which tokens are proposed*; `decode` alone decides which are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ouroboros.decode import Steps
from ouroboros.drafters.drafting import DraftLoop
from ouroboros.drafters.lookahead import Lookahead
from ouroboros.drafters.pool import PhrasePool, check_pool, check_range
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector
from ouroboros.tree import TokenTree, TreeBuilder


class OuroborosPaper:
    """The published drafter: gamma, W = window_size, N = ngram_size, G = verification_set_size and
    K = topk suffixes.

    `window_size` 0 drafts without a Jacobi window, `topk` 0 does not lengthen the draft, `recycle`
    False takes no phrases from verification, `seed` fills the first window. `pool_state`: "cold"
    empties the pool for each prompt, "task" carries it from prompt to prompt, "loaded" starts each
    prompt from `pool`, the `state_dict` of another drafter. Raises `ValueError` for settings out of
    range and for a pool of another phrase length.
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
        recycle: bool = True,
        pool_state: Literal["cold", "task", "loaded"] = "cold",
        pool: Mapping | None = None,
        seed: int = 0,
    ) -> None:
        if draft is None:
            raise ValueError("OuroborosPaper drafts with a model: give draft=")
        check_range(1, gamma=gamma)
        check_range(0, topk=topk)
        check_pool(pool_state, pool)
        self.draft: CachedModel | None = draft
        self.gamma, self.topk, self.recycle = gamma, topk, recycle
        self.reads_rejected = recycle
        self.ngram_size = ngram_size
        self.pool_state = pool_state
        self.carries_state = pool_state == "task"
        self.pool = PhrasePool(
            phrase_len=ngram_size - 1, per_key=max(1, verification_set_size, topk)
        )
        self._loaded = pool if pool_state == "loaded" else None
        if pool is not None:
            self.load_state_dict(pool)
        self.drafting = Lookahead(
            window_size=window_size,
            ngram_size=ngram_size,
            verification_set_size=verification_set_size,
            pool_from_prompt=False,
            pool=self.pool,
            pool_while_filling=False,
            seed=seed,
        )
        self._loop = DraftLoop(draft, self.drafting)
        self._draft_end = 0
        self._suffixes: list[tuple[int, ...]] = []

    @property
    def draft_sequence(self) -> CachedSequence:
        """The sequence on which the draft model is called."""
        return self._loop.sequence

    def state_dict(self) -> dict:
        """Return the pool's phrases: all that outlives a prompt."""
        return self.pool.state_dict()

    def load_state_dict(self, state: Mapping) -> None:
        """Hold the phrases of `state_dict`. Raises `ValueError` for another phrase length."""
        self.pool.load_state_dict(state)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt: empty, keep or restore the pool as `pool_state` says."""
        self._loop.reset(choose)
        self.drafting.reset(choose)
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
        elif self.pool_state == "cold":
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the draft as a chain, with phrases of the pool below its end.

        Draft gamma tokens, and more where the last draft call yields more; their source is "draft",
        or "phrase" for tokens of a verified phrase.
        """
        sources, drafting = list[str](), self._loop.begin(tokens, budget - 1)
        while drafting.left > 0 and len(sources) < self.gamma:
            record = yield from drafting.step()
            sources += ["phrase" if name == "pool" else "draft" for name in record.sources]
        tree = TreeBuilder(tokens[-1])
        tree.graft([self._loop.drafted])
        tree.source[1:] = sources
        self._draft_end = end = len(sources)
        self._suffixes = self.pool.get(tree.tokens[end], self.topk)
        tree.graft([phrase[: budget - 1 - end] for phrase in self._suffixes], end, source="suffix")
        return tree.build()

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Make phrases of the target's predictions (section 3.3 of the paper).

        After full acceptance, replace each suffix that was verified to its end by the target's
        predictions along it. After a rejection, add the runs of the rejected tail in which the
        target agrees with the draft at least N - 2 times.
        """
        if not self.recycle:
            return
        end = min(self._draft_end, len(tree) - 1)
        kept = sum(node <= end for node in path)
        if kept > end:
            for phrase in reversed(self._suffixes):  # the best one becomes the newest
                node, predicted = end, [chosen[end]]
                for token in phrase[:-1]:
                    child = tree.children.get((node, token))
                    if child is None:
                        break
                    node = child
                    predicted.append(chosen[node])
                if len(predicted) == len(phrase):
                    self.pool.replace(tree.tokens[end], phrase, predicted)
            return
        for node in range(kept, end + 1):
            last, limit = node, min(end, node + self.pool.phrase_len - 1)
            while last < limit and chosen[last] == tree.tokens[last + 1]:
                last += 1
            if last - node >= self.ngram_size - 2:
                self.pool.add(tree.tokens[node], chosen[node : last + 1])
