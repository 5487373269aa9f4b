"""Ouroboros: drafting phrase by phrase, on one draft tree that grows where a node pays.

It applies the ideas of the paper (Zhao et al., EMNLP 2024, arXiv 2402.13720) to one tree. Phrases
of the text and recycled predictions propose nodes; the draft model scores many nodes in one call
where that pays (phrases speed up drafting); phrases continue below the draft model's tokens
(phrases lengthen the draft); the target's predictions at rejected nodes become phrases
(verification makes phrases). All may be kept between prompts. The published algorithm is
`OuroborosPaper`.

Invariant: estimates only change *which tokens are proposed*; `decode` alone decides which are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ouroboros.costs import Costs, Surface
from ouroboros.decode import Steps, predict
from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import RANKS, SIZES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower, warm_up_jit
from ouroboros.drafters.guard import LONG_READ, Guard
from ouroboros.drafters.pool import check_pool
from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector, TopKRecorder, argmax
from ouroboros.trace import StepRecord
from ouroboros.tree import TokenTree

PoolState = Literal["cold", "task", "loaded"]
READ_GAIN, READ_AHEAD = 0.37, 16  # tokens gained per future token once the draft is prefilled
MIN_CONTEXT = 128  # costs are looked up at this context length and its doublings


class Ouroboros:
    """The Ouroboros drafter, with a draft model or (`draft=None`) with phrases alone.

    - `max_nodes`: size of the largest tree, root included; `children`: largest number of children
      of a node (1: a chain); `draft_nodes`: largest number of new nodes in one draft call
    - `recycle`: turn the target's predictions at rejected nodes into phrases
    - `judge`: let the draft model also score nodes that have phrases below them; False calls it
      only where phrases propose nothing
    - `costs`: call costs, as a `Costs`, a name ("flat": a GPU, "epyc": a few CPU cores) or a file;
      by default the name that suits the draft's device
    - `weights`: weights of the probability estimators, or their file; by default the shipped ones
    - `pool_state`: "cold" empties the phrase memory for each prompt, "task" keeps it from prompt to
      prompt, "loaded" starts each prompt from `pool`, the `state_dict` of another drafter
    - `guard`: correct prices by measured step times, and decode plainly for a while wherever these
      show that drafting loses (see `Guard`; not in batches). What is proposed then depends on the
      clock, the text never does; False where proposals must repeat
    - `history`: how earlier prompts are read: True looks farther back, trusts what earlier texts
      alone say less, begins each prompt with fresh acceptance rates and grows larger trees

    The draft model is first called where that first pays; until then it has read nothing. Where the
    costs say how long it reads a text, reading must pay too: READ_GAIN tokens for each one to come,
    as many to come as were made and READ_AHEAD more, at most the budget. A long prompt is prefilled
    before anything is proposed, so the first token comes as early as in greedy decoding. Raises
    `ValueError` for settings out of range.
    """

    def __init__(
        self,
        draft: CachedModel | None = None,
        *,
        max_nodes: int = 64,
        children: int = 5,
        draft_nodes: int = 24,
        recycle: bool = True,
        judge: bool = True,
        history: bool = False,
        guard: bool = True,
        costs: str | Costs | None = None,
        weights: str | Weights | None = None,
        pool_state: PoolState = "cold",
        pool: Mapping | None = None,
    ) -> None:
        check_pool(pool_state, pool)
        warm_up_jit()
        self.draft = draft
        self.draft_sequence: CachedSequence | None = None
        self.grower = TreeGrower(
            weights if isinstance(weights, Weights) else Weights.load(weights),
            max_nodes=max_nodes,
            children=children,
            draft_nodes=draft_nodes,
            recycle=recycle,
            judge=judge,
            history=history,
        )
        self.reads_rejected = recycle
        costs = costs or default_costs(draft)
        self.costs = costs if isinstance(costs, Costs) else Costs.load(costs)
        self.pool_state = pool_state
        self.carries_state = pool_state == "task"
        self._loaded = pool if pool_state == "loaded" else None
        if pool is not None:
            self.load_state_dict(pool)
        self._guard = Guard() if guard else None
        self._ranking = TopKRecorder(argmax, RANKS)
        self._cost_contexts: tuple[int, ...] = ()
        self._batch_size = 1
        self._cost_tables: dict[tuple[tuple[int, ...], int], tuple[list[float], ...]] = {}
        self._proposed: TokenTree | None = None
        self._first_step, self._prompt_len = True, 0

    def state_dict(self) -> dict:
        """Return the state kept between prompts: phrases, recycled predictions, learned rates."""
        return self.grower.state_dict()

    def load_state_dict(self, state: Mapping) -> None:
        """Restore the state of `state_dict`. Raises `ValueError` for damaged content."""
        self.grower.load_state_dict(state)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt: empty, keep or restore the phrase memory, by `pool_state`."""
        if self._loaded is not None:
            self.load_state_dict(self._loaded)
        elif self.pool_state == "cold":
            self.grower.forget()
        self._ranking = TopKRecorder(choose, RANKS)
        self._cost_contexts = ()
        self._proposed = None
        if self._guard is not None:
            self._guard.begin_prompt()
        self._first_step, self._prompt_len = True, 0
        self.draft_sequence = self.draft.new_sequence() if self.draft is not None else None
        self.grower.start(seed=choose.noise_seed, temperature=choose.temperature)

    def set_batch_size(self, size: int) -> None:
        """Plan with the costs of calls shared by `size` sequences with trees of equal size."""
        if size != self._batch_size:
            self._batch_size, self._cost_contexts = size, ()

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the tree with the best expected gain over cost, at most `budget` - 1 deep."""
        first_step, self._first_step = self._first_step, False
        self._prompt_len = self._prompt_len or len(tokens)
        self._update_costs(tokens)
        paused = self._guard is not None and self._guard.steps_left > 0 and self._batch_size == 1
        if paused or (first_step and read_alone(tokens)):
            return TokenTree.chain(tokens[-1], ())
        grower, draft, sequence = self.grower, self.draft, self.draft_sequence
        room = -1
        if self._reading_pays(tokens, budget):
            assert draft is not None and sequence is not None
            room = draft.room(sequence, tokens)
        tree = grower.begin(tokens, budget - 1, room)
        while tree is not None:
            assert draft is not None and sequence is not None
            yield from predict(draft, sequence, tokens, tree, self._ranking)
            tree = grower.add_rankings(*self._ranking.last)
        self._proposed = grower.proposal()
        return self._proposed

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from the verified tree; keep accepted nodes in the draft model's cache."""
        if tree is not self._proposed:
            return
        drafted = self.grower.drafted_prefix(path)
        if drafted and self.draft is not None and self.draft_sequence is not None:
            self.draft.accept(self.draft_sequence, drafted)
        self.grower.learn(chosen, path)

    def observe_step(self, record: StepRecord) -> None:
        """Report the time of a step, and what its calls were priced at, to the guard."""
        if self._guard is not None and self._batch_size == 1 and self._cost_contexts:
            target, _ = self._cost_tables[self._cost_contexts, 1]
            call, verifying = target[0], target[min(record.scored, len(target)) - 1]
            spent = call * float(self.grower.state.spent) / self._guard.draft_price
            self._guard.observe(record, call, verifying, spent if record.draft_calls else 0.0)

    def _reading_pays(self, tokens: Sequence[int], budget: int) -> bool:
        """Return whether the draft's next call is worth the text that it must read before: a
        prompt, or what was added in a pause."""
        draft, sequence, costs = self.draft, self.draft_sequence, self.costs
        if draft is None or sequence is None:
            return False
        start = sequence.first_read(tokens, draft.prefill_limit)
        unread = len(tokens) - start - (sequence.held if start == sequence.start else 0)
        if unread <= LONG_READ or not costs.reading_ms or (sequence.calls and not sequence.held):
            return True  # the last: a draft that caches nothing, as in simulations
        call_ms = costs.target.call_ms(1, min(len(tokens), max(costs.target.ms)))
        price = costs.draft_reading_ms(unread, len(tokens)) / call_ms
        to_come = min(budget, READ_AHEAD + len(tokens) - self._prompt_len)
        return READ_GAIN * to_come >= price * self.grower.tokens_per_cost

    def _update_costs(self, tokens: Sequence[int]) -> None:
        """Use the call costs at each model's own context, looked up at its doublings, the draft's
        corrected as the guard measured."""
        guard, draft, sequence, size = (
            self._guard,
            self.draft,
            self.draft_sequence,
            self._batch_size,
        )
        start = sequence.first_read(tokens, draft.prefill_limit) if draft and sequence else 0
        lengths = len(tokens), len(tokens) - start
        contexts = tuple(max(MIN_CONTEXT, 1 << (length - 1).bit_length()) for length in lengths)
        corrected = guard is not None and guard.correct_prices()
        if contexts == self._cost_contexts and not corrected:
            return
        self._cost_contexts = contexts
        if (contexts, size) not in self._cost_tables:
            pair = self.costs.target, self.costs.draft or self.costs.target
            tables = (cost_table(*known, size) for known in zip(pair, contexts, strict=True))
            self._cost_tables[contexts, size] = tuple(tables)
        target, drafting = self._cost_tables[contexts, size]
        if guard is not None:
            drafting, node = (
                [guard.draft_price * ms for ms in drafting],
                guard.node_price * target[0],
            )
            if node:
                target = [max(ms + node * i, target[0] / 2) for i, ms in enumerate(target)]
        self.grower.set_costs(target, drafting)


def default_costs(draft: CachedModel | None) -> str:
    """Return the name of the shipped costs that suit the draft's device."""
    device = getattr(draft, "device", None)
    return "flat" if device is not None and device.type != "cpu" else "epyc"


def cost_table(surface: Surface, context: float, batch_size: int = 1) -> list[float]:
    """Return the costs in ms of calls of 1, 2, ... nodes per sequence at a context length, capped
    at the longest measured one.

    `batch_size` sequences share a call, priced as a single call on all their nodes. Beyond the
    largest measured call, costs are extrapolated from the upper half of measured sizes.
    """
    context = min(batch_size * context, max(surface.ms))
    largest = int(min(*(max(row) for row in surface.ms.values()), batch_size * (SIZES - 1)))
    known = surface.calls_ms(range(1, largest + 1), context)
    if batch_size == 1:
        return known.tolist()
    nodes, half = batch_size * np.arange(1, SIZES), (largest - 1) // 2
    each = (known[-1] - known[half]) / max(1, largest - 1 - half)
    costs = known[np.minimum(nodes, largest) - 1] + each * np.maximum(0, nodes - largest)
    return costs.tolist()
