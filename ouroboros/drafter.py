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
from dataclasses import dataclass, replace
from typing import Literal

import torch

from ouroboros.choose import Choose, Ranked, argmax
from ouroboros.decode import extend
from ouroboros.lookahead import Lookahead
from ouroboros.model import CachedModel
from ouroboros.pool import CONTEXT, PhrasePool
from ouroboros.tree import TokenTree

PoolState = Literal["cold", "task", "loaded"]


@dataclass(frozen=True)
class Policy:
    """Which ideas are on, each a switch for ablations.

    `prompt_phrases`, `output_phrases`: take the n-grams of the prompt and of accepted output.
    `pool_while_filling`: use the pool while the Jacobi window is still being filled.
    `correct_always`: correct a verified suffix after a rejection too, not only on full acceptance.
    `agreements`: consecutive agreements between draft and target that make a phrase (None: N - 2).
    `tail_predictions`: the target's own predictions along a rejected tail become phrases.
    `context`: prefer phrases whose context agrees.
    `root_phrases`: branches from the pool at the root too, beside the draft.
    `runner_up`: the draft's second choice becomes a branch where its probability of being reached
    is at least this (0: never).
    `recall`: where a phrase's context agrees in at least this many tokens, draft from the pool
    alone, without the draft model (0: never).
    `stop_below`: stop drafting when the draft's own probability of the whole draft falls below
    this (0: never).
    `max_nodes`: no branch makes the tree larger than this.
    """

    prompt_phrases: bool = True
    output_phrases: bool = True
    pool_while_filling: bool = True
    correct_always: bool = True
    agreements: int | None = 1
    tail_predictions: bool = True
    context: bool = True
    root_phrases: bool = True
    runner_up: float = 0.03
    recall: int = 4
    stop_below: float = 0.3
    max_nodes: int = 64


OURS = Policy()
PAPER = Policy(
    prompt_phrases=False,
    output_phrases=False,
    pool_while_filling=False,
    correct_always=False,
    agreements=None,
    tail_predictions=False,
    context=False,
    root_phrases=False,
    runner_up=0.0,
    recall=0,
    stop_below=0.0,
    max_nodes=1 << 30,
)


class Watched:
    """A choice that remembers, along the path it accepts, how sure the draft was of each token."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.ranks: list[Ranked] = []

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        ranked = self.choose.ranked(logits, tokens, tree)
        by_node = dict(zip(tree.asked, ranked, strict=True))
        path = tree.longest_match(
            [by_node[n].token if n in by_node else -1 for n in range(len(tree))]
        )
        self.ranks += [by_node[node] for node in path]
        return [rank.token for rank in ranked]

    def ranked(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[Ranked]:
        return self.choose.ranked(logits, tokens, tree)

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        return self.choose.scores(logits, tokens, tree)


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
        self.policy = replace(_policy(policy), **(options or {}))
        self.gamma, self.topk, self.learn = gamma, topk, learn
        self.reads_rejected = learn
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
        self._choose: Choose = argmax
        self._seen = 0
        self._chain = 0
        self._hung: list[tuple[int, tuple[int, ...], list[int]]] = []

    def reset(self, choose: Choose) -> None:
        """Begin a prompt; the pool is emptied, kept or restored as `pool_state` says."""
        self._choose = choose
        self.inner.reset(choose)
        self._seen = 0
        if self._loaded is not None:
            self.pool.restore(self._loaded)
        elif self.pool_state == "cold":
            self.pool.clear()

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return the draft as a chain, with suffixes and other branches from the pool."""
        self._take_text(tokens)
        drafted, ranks, sources = self._draft(tokens, budget - 1)
        tree = TokenTree.chain(tokens[-1], drafted)
        tree = replace(tree, source=("", *sources))
        self._chain = len(drafted)
        self._hung = []
        tree = self._lengthen(tree, tokens, self._chain, budget)
        if self.policy.runner_up and ranks:
            tree = self._runners_up(tree, tokens, ranks, budget)
        if self.policy.root_phrases and drafted:
            tree = self._lengthen(tree, tokens, 0, budget)
        return tree

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Make phrases of what the target predicted (paper, section 3.3)."""
        if not self.learn:
            return
        chain = min(self._chain, len(tree) - 1)
        kept = sum(node <= chain for node in path)
        if kept > chain or self.policy.correct_always:
            self._correct(tree, chosen)
        if kept <= chain:
            self._learn_tail(tree, chosen, kept, chain)

    def _take_text(self, tokens: Sequence[int]) -> None:
        policy = self.policy
        wanted = policy.output_phrases if self._seen else policy.prompt_phrases
        if wanted:
            self.pool.add_text(tokens, self._seen)
        self._seen = len(tokens)

    def _draft(self, tokens: Sequence[int], room: int) -> tuple[list[int], list[Ranked], list[str]]:
        """Draft gamma tokens, or fewer where the draft is unsure; free ones beyond gamma stay.

        Returns tokens, the draft's ranking at each and who proposed each: "draft", "phrase" where
        the draft model verified it, "recall" where the pool drafted alone (no rankings then).
        """
        recalled = self._recall(tokens, room)
        if recalled:
            return recalled, [], ["recall"] * len(recalled)
        policy, sequence = self.policy, list(tokens)
        watch = Watched(self._choose)
        watching = policy.runner_up > 0 or policy.stop_below > 0
        choose: Choose = watch if watching else self._choose
        sources: list[str] = []
        for record in extend(self.model, self.inner, sequence, room, choose=choose):
            sources += ["phrase" if name == "pool" else "draft" for name in record.sources]
            if len(sources) >= self.gamma or _reached(watch.ranks) < policy.stop_below:
                break
        return sequence[len(tokens) :], watch.ranks, sources

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

    def _lengthen(
        self, tree: TokenTree, tokens: Sequence[int], node: int, budget: int
    ) -> TokenTree:
        """Hang up to K phrases of the pool below a node, each cut to the budget."""
        before = [*tokens[-CONTEXT:], *(tree.tokens[n] for n in tree.path_to(node)[1:])]
        depth = len(before) - len(tokens[-CONTEXT:])
        before = before[:-1][-CONTEXT:]
        space = self.policy.max_nodes - len(tree)
        fitting = []
        for phrase in self.pool.get(tree.tokens[node], self.topk, before=before):
            cut = phrase[: budget - 1 - depth]
            space -= len(cut)
            if space < 0:
                break
            fitting.append(cut)
            self._hung.append((node, phrase, before))
        return tree.graft(fitting, at=node, source="suffix") if fitting else tree

    def _runners_up(
        self, tree: TokenTree, tokens: Sequence[int], ranks: list[Ranked], budget: int
    ) -> TokenTree:
        """Branch to the draft's second choice where it is likely enough to be reached."""
        reached = 1.0
        for node, rank in enumerate(ranks[: self._chain]):
            worth = reached * rank.second_share
            if worth >= self.policy.runner_up and len(tree) < self.policy.max_nodes:
                phrase = self.pool.get(rank.second, 1)
                branch = [rank.second, *(phrase[0] if phrase else ())][: budget - 1 - node]
                branch = branch[: max(1, self.policy.max_nodes - len(tree))]
                tree = tree.graft([branch], at=node, source="runner-up")
            reached *= rank.share
        return tree

    def _correct(self, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Replace each suffix that was verified by what the target predicted along it."""
        child = {(parent, tree.tokens[node]): node for node, parent in enumerate(tree.parents)}
        for start, phrase, before in reversed(self._hung):
            node, predicted = start, [chosen[start]]
            for token in phrase[:-1]:
                if (node, token) not in child:
                    break
                node = child[node, token]
                predicted.append(chosen[node])
            if len(predicted) == len(phrase):
                self.pool.replace(tree.tokens[start], phrase, predicted, before)

    def _learn_tail(self, tree: TokenTree, chosen: Sequence[int], first: int, end: int) -> None:
        """Phrases from the draft's rejected nodes `first` ... `end` and the predictions there."""
        tail = range(first, end + 1)
        need = self.policy.agreements
        length = self.pool.phrase_len
        if self.policy.tail_predictions:
            predicted = [chosen[node] for node in tail]
            for at in range(len(predicted) - 1):
                self.pool.add(predicted[at], predicted[at + 1 : at + 1 + length])
        wanted = self.ngram_size - 2 if need is None else need
        for node in tail:
            last = node
            while last < end and last - node < length - 1 and chosen[last] == tree.tokens[last + 1]:
                last += 1
            if last - node >= wanted:
                self.pool.add(tree.tokens[node], [chosen[n] for n in range(node, last + 1)])


def _reached(ranks: list[Ranked]) -> float:
    """The draft's own probability of everything it drafted."""
    reached = 1.0
    for rank in ranks:
        reached *= rank.share
    return reached


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


def _policy(policy: str | Policy) -> Policy:
    if isinstance(policy, Policy):
        return policy
    named = {"ours": OURS, "paper": PAPER}
    if policy not in named:
        raise ValueError(f'policy {policy!r} is not "ours", "paper" or a Policy')
    return named[policy]
