"""Ouroboros: one drafter from all sources (ours), or the published algorithm (paper).

Both draft with phrases, lengthen drafts by phrases, make phrases of what verification says and may
keep them between prompts (Zhao et al., EMNLP 2024, arXiv 2402.13720). `grown` and `published` are
the two; this is the one name under which they are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ouroboros.costs.surface import Costs
from ouroboros.drafters.draft_tree.growth import Shape
from ouroboros.drafters.draft_tree.remembered import DrafterMemory
from ouroboros.drafters.draft_tree.weights import Weights
from ouroboros.drafters.grown import Grown
from ouroboros.drafters.pool import PhrasePool
from ouroboros.drafters.published import Published
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector
from ouroboros.tree import TokenTree

PoolState = Literal["cold", "task", "loaded"]
Pool = PhrasePool | DrafterMemory
log = logging.getLogger(__name__)


class Ouroboros:
    """The Ouroboros drafter.

    `policy` "ours" grows one tree from phrases, recycled predictions and `draft` (None: without a
    draft model), as far as it pays by `costs`:

    - `max_nodes`: the tree's size at most, root included
    - `costs`: what calls cost: a `Costs` (`probe` measures them), a name ("flat": a GPU, "epyc": a
      few cores of a CPU) or a file; by default the name that suits the draft's device
    - `weights`: the estimates' weights, or their file; by default the shipped ones
    - for ablations: `recycle` False takes nothing from what was rejected, `children` 1 grows a
      chain, `draft_nodes` 1 scores one node a draft call, `judge` False asks the draft only where
      phrases are silent

    `policy` "paper" is the published algorithm: `gamma`, `window_size` (W), `ngram_size` (N),
    `verification_set_size` (G), `topk` (K) and `seed` are its sizes and have no meaning for "ours".

    `pool_state`: "cold" empties the memory of phrases for each prompt, "task" carries it over the
    run, "loaded" starts each prompt from the `pool` given.
    """

    def __init__(
        self,
        draft: CachedModel | None = None,
        *,
        policy: Literal["ours", "paper"] = "ours",
        pool_state: PoolState = "cold",
        pool: Pool | None = None,
        max_nodes: int = 64,
        costs: str | Costs | None = None,
        weights: str | Weights | None = None,
        recycle: bool = True,
        children: int = 5,
        draft_nodes: int = 24,
        judge: bool = True,
        gamma: int | None = None,
        window_size: int | None = None,
        ngram_size: int | None = None,
        verification_set_size: int | None = None,
        topk: int | None = None,
        seed: int | None = None,
    ) -> None:
        given = {
            "gamma": gamma,
            "window_size": window_size,
            "ngram_size": ngram_size,
            "verification_set_size": verification_set_size,
            "topk": topk,
            "seed": seed,
        }
        sizes = {name: value for name, value in given.items() if value is not None}
        check_pool(policy, pool_state, pool)
        self.draft = draft
        self.policy, self.pool_state = policy, pool_state
        self.reads_rejected = recycle
        if policy == "paper":
            if draft is None:
                raise ValueError('policy="paper" drafts with a model: give draft=')
            self.drafter: Published | Grown = Published(
                draft,
                pool_state=pool_state,
                pool=pool,  # type: ignore[arg-type]
                recycle=recycle,
                **sizes,  # type: ignore[arg-type]
            )
            return
        if sizes:
            log.warning('%s: no meaning for policy="ours", and ignored', ", ".join(sizes))
        self.drafter = Grown(
            draft,
            shape=Shape(max_nodes, children, draft_nodes, recycle, judge),
            costs=costs,
            weights=weights if isinstance(weights, Weights) else Weights.load(weights),
            pool_state=pool_state,
            pool=pool,  # type: ignore[arg-type]
        )

    @property
    def pool(self) -> Pool:
        """What outlives a prompt."""
        return self.drafter.pool

    def restore(self, pool: Pool) -> None:
        """Hold exactly what a pool of this policy's kind holds."""
        self.drafter.restore(pool)  # type: ignore[arg-type]

    def read_pool(self, path: str | Path, *, tokenizer_id: str) -> Pool:
        """Read a pool of this policy's kind. Raises `ValueError` for what is none."""
        if isinstance(self.drafter, Grown):
            return DrafterMemory.load(path, tokenizer_id=tokenizer_id)
        own = self.drafter.pool
        sizes = {"phrase_len": own.phrase_len, "per_key": own.per_key}
        return PhrasePool.load(path, tokenizer_id=tokenizer_id, **sizes)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt; the pool is emptied, kept or restored as `pool_state` says."""
        self.drafter.reset(choose)

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        """Return a tree rooted at the last token; see `Grown` and `Published`."""
        return self.drafter.propose(tokens, budget)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from what the target said."""
        self.drafter.observe(tree, chosen, path)


def check_pool(policy: str, pool_state: str, pool: object) -> None:
    """Raise `ValueError` for a policy or state that there is not, and for a pool that would be
    emptied, is missing or is another policy's."""
    kinds = {"ours": DrafterMemory, "paper": PhrasePool}
    if policy not in kinds:
        raise ValueError(f'policy {policy!r} is not "ours" or "paper"')
    if pool_state not in ("cold", "task", "loaded"):
        raise ValueError(f"pool_state {pool_state!r} is not one of cold, task, loaded")
    kind = kinds[policy].__name__
    if pool is None:
        if pool_state == "loaded":
            raise ValueError(f'pool_state="loaded" needs a pool: give pool={kind}.load(...)')
        return
    if not isinstance(pool, kinds[policy]):
        raise ValueError(f"pool is {pool!r}: give a {kind}, such as {kind}.load(...)")
    if pool_state == "cold":
        raise ValueError('a cold start would empty the pool: say pool_state="loaded" or "task"')
