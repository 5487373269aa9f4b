"""Ouroboros as published: drafting phrase by phrase (Zhao et al., EMNLP 2024, arXiv 2402.13720).

The draft model itself runs lookahead decoding, so each draft call yields several tokens (phrases
speed up drafting). Phrases of the pool are appended to the draft and verified in the same target
call (phrases lengthen the draft). The target's predictions, after accepted and rejected tokens,
become new phrases (verification makes phrases). The pool may be kept from prompt to prompt.

Invariant: the pool only changes *which tokens are proposed*; `decode` alone decides which are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ouroboros.calls import Steps
from ouroboros.core.select import TokenSelector, argmax
from ouroboros.core.tree import TokenTree, TreeBuilder
from ouroboros.decode import Decoding, NoDistribution
from ouroboros.drafters.lookahead import Lookahead
from ouroboros.drafters.pool import PhrasePool, check_pool, check_range
from ouroboros.engine.model import CachedModel


class OuroborosPaper:
    """The published drafter, with the paper's gamma, W = `window_size`, N = `ngram_size`,
    G = `verification_set_size` and K = `topk`.

    `window_size` 0 drafts without a Jacobi window; `topk` 0 appends no phrases to the draft;
    `recycle=False` makes no phrases from verification. `pool_state`: "cold" empties the pool for
    each prompt, "task" keeps it from prompt to prompt, "loaded" starts each prompt from `pool`, the
    `state_dict` of another drafter. Raises `ValueError` for settings out of range and for a pool of
    another phrase length.
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
    ) -> None:
        if draft is None:
            raise ValueError("OuroborosPaper drafts with a model: give draft=")
        check_range(1, gamma=gamma)
        check_range(0, topk=topk)
        check_pool(pool_state, pool)
        self.draft, self.draft_sequence = draft, draft.new_sequence()
        self._choose: TokenSelector = argmax
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
        )
        self._draft_end = 0
        self._suffixes: list[tuple[int, ...]] = []

    def state_dict(self) -> dict:
        """Return the only state kept between prompts: the pool's phrases (see
        `PhrasePool.state_dict`)."""
        return self.pool.state_dict()

    def load_state_dict(self, state: Mapping) -> None:
        """Restore the phrases of a `state_dict`. Raises `ValueError` if `ngram_size` differs."""
        self.pool.load_state_dict(state)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt: empty, keep or restore the pool, by `pool_state`."""
        self.draft_sequence, self._choose = self.draft.new_sequence(), choose
        self.drafting.reset(choose)
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
        elif self.pool_state == "cold":
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the draft as a chain, with phrases of the pool below its last token.

        Drafts gamma tokens, or more if the last draft call yields more. A token's source is
        "phrase" if it is from a phrase that the draft model accepted, else "draft".
        """
        sources = list[str]()
        drafting = Decoding(
            self.draft,
            self.drafting,
            list(tokens),
            budget - 1,
            sequence=self.draft_sequence,
            choose=self._choose,
        )
        while drafting.left > 0 and len(sources) < self.gamma:
            try:
                record = yield from drafting.step()
            except NoDistribution:  # the draft ends there
                break
            sources += ["phrase" if name == "pool" else "draft" for name in record.sources]
        tree = TreeBuilder(tokens[-1])
        tree.graft([drafting.trace.new_tokens])
        tree.source[1:] = sources
        self._draft_end = end = len(sources)
        self._suffixes = self.pool.get(tree.tokens[end], self.topk)
        tree.graft([phrase[: budget - 1 - end] for phrase in self._suffixes], end, source="suffix")
        return tree.build()

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Turn the target's predictions into phrases (section 3.3 of the paper). `chosen[i]` is the
        target's prediction after node i.

        If the whole draft was accepted, replace each appended phrase (if its nodes were scored to
        the end) by the target's predictions along it. Otherwise, wherever the target's predictions
        at rejected tokens agree with the draft at least N - 2 times in a row, add them as a phrase.
        """
        if not self.recycle:
            return
        end = min(self._draft_end, len(tree) - 1)
        kept = sum(node <= end for node in path)
        if kept > end:
            for phrase in reversed(self._suffixes):  # the best phrase becomes the newest
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
