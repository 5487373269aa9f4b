"""Ouroboros: drafting phrase by phrase (Zhao et al., EMNLP 2024, arXiv 2402.13720).

The small model drafts with lookahead decoding of its own, so each of its calls yields several
tokens (phrases speed up drafting). Phrases of the pool are hung below the draft, and the target
verifies them in the same call (phrases lengthen the draft). What the target predicted along the
way, rejected or not, becomes phrases again (verification makes phrases), and the pool may outlive
the prompt.

Invariant: the pool only ever changes *what is proposed*; `decode` alone decides what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ouroboros.choose import Choose, argmax
from ouroboros.decode import extend
from ouroboros.drafters import learning
from ouroboros.drafters.drafting import Draft, Rank, Scratch, Watched
from ouroboros.drafters.learning import Hung
from ouroboros.drafters.lookahead import Lookahead
from ouroboros.drafters.pace import pace
from ouroboros.drafters.policy import Policy, named
from ouroboros.drafters.pool import CONTEXT, PhrasePool
from ouroboros.engine.model import CachedModel
from ouroboros.growing import Growing
from ouroboros.tree import TokenTree

PoolState = Literal["cold", "task", "loaded"]


class Ouroboros:
    """The Ouroboros drafter: gamma, W = window_size, N = ngram_size, G = verification_set_size and
    K = topk suffixes.

    `window_size` 0 drafts without a Jacobi window, `topk` 0 does not lengthen, `learn` False takes
    no phrases from verification. `policy` is "ours", "paper" (the published behaviour) or a
    `Policy`; `options` override single switches of it. `pool_state`: "cold" empties the pool for
    each prompt, "task" carries it over the run, "loaded" starts each prompt from the pool given.
    """

    def __init__(
        self,
        draft: CachedModel,
        *,
        gamma: int,
        window_size: int,
        ngram_size: int,
        verification_set_size: int,
        topk: int = 3,
        pool_state: PoolState = "cold",
        pool: PhrasePool | None = None,
        policy: str | Policy = "ours",
        options: dict | None = None,
        learn: bool = True,
        seed: int = 0,
    ) -> None:
        if gamma < 1 or topk < 0:
            raise ValueError(f"gamma {gamma} must be at least 1 and topk {topk} at least 0")
        if pool_state not in ("cold", "task", "loaded"):
            raise ValueError(f"pool_state {pool_state!r} is not one of cold, task, loaded")
        if pool_state == "loaded" and pool is None:
            raise ValueError('pool_state="loaded" needs a pool: give pool=PhrasePool.load(...)')
        self.draft: CachedModel | None = draft
        self.model = draft
        self.policy = replace(named(policy), **(options or {}))
        self.gamma, self.topk, self.learn = gamma, topk, learn
        self.reads_rejected = learn or self.policy.draft_cost > 0
        self.ngram_size = ngram_size
        self.pool_state = pool_state
        if pool is not None:
            _check_pool(pool, pool_state, ngram_size - 1)
        if pool is None:
            pool = PhrasePool(
                phrase_len=ngram_size - 1,
                per_key=max(1, verification_set_size, topk),
                use_context=self.policy.context,
            )
        self.pool = pool
        self._loaded = pool.copy() if pool_state == "loaded" else None
        self.inner = Lookahead(
            window_size=window_size,
            ngram_size=ngram_size,
            verification_set_size=verification_set_size,
            pool_from_prompt=False,
            pool=pool,
            pool_while_filling=self.policy.pool_while_filling,
            seed=seed,
        )
        self.pace = pace(stop_below=self.policy.stop_below, draft_cost=self.policy.draft_cost)
        self._choose: Choose = argmax
        self._seen = 0
        self._chain = 0
        self._hung: list[Hung] = []
        self._scratch = Scratch()
        self._made = Draft()
        self._phrases: list[tuple[int, ...]] = []

    def reset(self, choose: Choose) -> None:
        """Begin a prompt; the pool is emptied, kept or restored as `pool_state` says."""
        self._choose = choose
        self.inner.reset(choose)
        self._scratch.reset()
        self.pace.reset()
        self._seen = 0
        if self._loaded is not None:
            self.pool.restore(self._loaded)
        elif self.pool_state == "cold":
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the draft as a chain, with suffixes and other branches from the pool."""
        self._take_text(tokens)
        made = self._made = self._draft(tokens, budget - 1)
        tree = Growing(tokens[-1])
        tree.chain(made.tokens, made.sources)
        self._chain = len(made.tokens)
        self._hung = []
        near = list(tokens[-CONTEXT:])
        root_phrases = self.policy.root_phrases and bool(made.tokens)
        root_first = root_phrases and self.pace.root_first(made)
        if root_first:
            self._lengthen(tree, 0, near[:-1], budget)
        self._lengthen(tree, self._chain, [*near, *made.tokens][:-1][-CONTEXT:], budget)
        if self.policy.runner_up and made.ranks:
            self._runners_up(tree, made.ranks, budget)
        if root_phrases and not root_first:
            self._lengthen(tree, 0, near[:-1], budget)
        if self.policy.draft_cost:
            fitting = min(self.topk, (self.policy.max_nodes - 1) // self.pool.phrase_len)
            self._phrases = self.pool.get(tokens[-1], fitting, before=near[:-1])
        return TokenTree.grown(tree)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Make phrases of what the target predicted (paper, section 3.3)."""
        chain = min(self._chain, len(tree) - 1)
        kept = sum(node <= chain for node in path)
        if self.policy.draft_cost:
            said = [*(tree.tokens[node] for node in path[1:]), chosen[path[-1]]]
            self.pace.learn(self._made, said, kept=kept - 1, phrases=self._phrases)
        if not self.learn:
            return
        if kept > chain or self.policy.correct_always:
            learning.correct(self.pool, tree, chosen, reversed(self._hung))
        if kept > chain:
            return
        tail, wanted = range(kept, chain + 1), self.policy.agreements
        if self.policy.tail_predictions:
            learning.add_predictions(self.pool, chosen, tail)
        least = self.ngram_size - 2 if wanted is None else wanted
        learning.add_agreements(self.pool, tree, chosen, tail, least=least)

    def _take_text(self, tokens: Sequence[int]) -> None:
        policy = self.policy
        wanted = policy.output_phrases if self._seen else policy.prompt_phrases
        if wanted:
            self.pool.add_text(tokens, self._seen)
        self._seen = len(tokens)

    def _draft(self, tokens: Sequence[int], room: int) -> Draft:
        """Draft up to gamma tokens, fewer where the pace says so; free ones beyond gamma stay.

        Their sources are "draft", "phrase" where the draft model verified one, and "recall" where
        the pool drafted alone.
        """
        recalled = self._recall(tokens, room)
        if recalled:
            return Draft(recalled, ["recall"] * len(recalled))
        sequence = self._scratch.at(tokens)
        agreement = self._agreement(sequence)
        watch = Watched(self._choose)
        made = Draft(ranks=watch.ranks, root=agreement, end=agreement)
        if not self.pace.starts(agreement):
            return made
        policy = self.policy
        watching = policy.runner_up > 0 or policy.stop_below > 0 or policy.draft_cost > 0
        choose: Choose = watch if watching else self._choose
        for record in extend(self.model, self.inner, sequence, room, choose=choose):
            made.stages.append(len(made.tokens))
            made.sources += ["phrase" if name == "pool" else "draft" for name in record.sources]
            made.tokens = sequence[len(tokens) :]
            made.end = self._agreement(sequence)
            if len(made.tokens) >= self.gamma or not self.pace.goes_on(made):
                break
        return made

    def _agreement(self, sequence: Sequence[int]) -> int:
        """Return how much context the best phrase below the last token shares, where that is
        weighed."""
        if not self.policy.draft_cost:
            return -1
        return self.pool.agreement(sequence[-1], sequence[-CONTEXT - 1 : -1])

    def _recall(self, tokens: Sequence[int], room: int) -> list[int]:
        """Return phrases of the pool in a row for as long as their contexts agree, up to gamma."""
        if not self.policy.recall:
            return []
        sequence = list(tokens[-CONTEXT - 1 :])
        known = len(sequence)
        while len(sequence) - known < min(self.gamma, room):
            before = sequence[-CONTEXT - 1 : -1]
            phrase = self.pool.recall(sequence[-1], before, self.policy.recall)
            if not phrase:
                break
            sequence += phrase
        return sequence[known : known + max(room, 0)]

    def _lengthen(self, tree: Growing, node: int, before: list[int], budget: int) -> None:
        """Hang up to K phrases of the pool below a node, each cut to the budget; `before` are the
        tokens before the node's."""
        depth = tree.depths[node]
        space = self.policy.max_nodes - len(tree)
        fitting = []
        for phrase in self.pool.get(tree.tokens[node], self.topk, before=before):
            cut = phrase[: budget - 1 - depth]
            space -= len(cut)
            if space < 0:
                break
            fitting.append(cut)
            self._hung.append(Hung(node, phrase, before))
        tree.graft(fitting, node, source="suffix")

    def _runners_up(self, tree: Growing, ranks: list[Rank], budget: int) -> None:
        """Branch to the draft's second choice where it is likely enough to be reached."""
        reached = 1.0
        for node, rank in enumerate(ranks[: self._chain]):
            worth = reached * rank.second_share
            if worth >= self.policy.runner_up and len(tree) < self.policy.max_nodes:
                phrase = self.pool.get(rank.second, 1)
                branch = [rank.second, *(phrase[0] if phrase else ())][: budget - 1 - node]
                branch = branch[: max(1, self.policy.max_nodes - len(tree))]
                tree.graft([branch], node, source="runner-up")
            reached *= rank.share


def _check_pool(pool: PhrasePool, pool_state: PoolState, phrase_len: int) -> None:
    """Raise `ValueError` for a pool that would be emptied, or whose phrases have another length."""
    if not isinstance(pool, PhrasePool):
        raise ValueError(f"pool is {pool!r}: give a PhrasePool, such as PhrasePool.load(...)")
    if pool_state == "cold":
        raise ValueError('a cold start would empty the pool: say pool_state="loaded" or "task"')
    if pool.phrase_len != phrase_len:
        raise ValueError(
            f"the pool holds phrases of {pool.phrase_len} tokens, ngram_size asks for {phrase_len}"
        )
