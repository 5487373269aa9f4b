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

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

import numpy as np

from ouroboros.costs import Costs, Surface
from ouroboros.decode import Steps, predict
from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import RANKS, SIZES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower, warm_up_jit
from ouroboros.drafters.pool import check_pool
from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector, TopKRecorder, argmax
from ouroboros.trace import StepRecord
from ouroboros.tree import TokenTree

PoolState = Literal["cold", "task", "loaded"]
LONG_READ = 16  # up to this many unread tokens, a draft call's prefill is not priced
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
    - `guard`: correct the price of draft calls by measured step times, and decode plainly for a
      while wherever these show that drafting loses (see `Guard`; not in batches); what is proposed
      then depends on the clock, never the text
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
        guard: bool = False,
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
        guard = self._guard
        if (first_step and read_alone(tokens)) or (guard and guard.steps_left):
            return TokenTree.chain(tokens[-1], ())
        self._update_costs(tokens)
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
        if self._guard is not None and self._batch_size == 1:
            s = self.grower.state
            drafting = float(s.spent) if record.draft_calls else 0.0
            self._guard.observe(record, float(s.verify_cost[record.scored]), drafting)

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
        corrected = guard is not None and guard.correct_price()
        if contexts == self._cost_contexts and not corrected:
            return
        self._cost_contexts = contexts
        if (contexts, size) not in self._cost_tables:
            pair = self.costs.target, self.costs.draft or self.costs.target
            tables = (cost_table(*known, size) for known in zip(pair, contexts, strict=True))
            self._cost_tables[contexts, size] = tuple(tables)
        target, drafting = self._cost_tables[contexts, size]
        price = guard.draft_price if guard else 1.0
        self.grower.set_costs(target, [price * cost for cost in drafting])


class Guard:
    """Bounds what drafting may lose against plain decoding, by the measured times of steps.

    The loss counts the time of the steps, in target calls, less the calls that their tokens take
    plain decoding. Once it is more than LOSS since the prompt began, or since GAIN was gained, the
    next PAUSE steps are plain; each further pause is twice as long, until drafting has gained GAIN.
    Not counted are a prompt's first step, which reads it, and steps in which the draft reads text:
    whether that pays is decided before. Two plain steps come first: a plain step's time is the
    median of the newest five. Without step times, as in replays, nothing is paused.

    `draft_price` corrects the price of draft calls: the median, over the newest STEPS steps, of
    their measured time over their price, both relative to the target call; within a factor LIMIT.
    """

    LOSS, GAIN, PAUSE = 1.0, 4.0, 48
    STEPS, LIMIT, MOVED = 25, 2.0, 0.1

    def __init__(self) -> None:
        self.plain_s: deque[float] = deque(maxlen=5)
        self.prices: deque[float] = deque(maxlen=self.STEPS)
        self.draft_price = 1.0
        self.steps_left, self.pause = 0, self.PAUSE
        self.lost = 0.0
        self._first = True

    def begin_prompt(self) -> None:
        """Let a prompt draw on no other's gains."""
        self.lost, self._first = max(self.lost, 0.0), True

    def correct_price(self) -> bool:
        """Update `draft_price`; return whether it moved by more than the share MOVED."""
        if len(self.prices) < 5:
            return False
        price = min(max(median(self.prices), 1 / self.LIMIT), self.LIMIT)
        moved = abs(price / self.draft_price - 1) > self.MOVED
        self.draft_price = price if moved else self.draft_price
        return moved

    def observe(self, record: StepRecord, verifying: float, drafting: float) -> None:
        """Count what a step took, which was priced at `verifying` and `drafting` target calls;
        `steps_left` is how many of the next ones are to be plain."""
        first, self._first = self._first, False
        if first and not self.plain_s:
            self.steps_left = 2
        if first or record.draft_caught_up > LONG_READ:
            return
        if drafting and record.verify_s:
            price = record.draft_s / record.verify_s * verifying / drafting
            self.prices.append(price * self.draft_price)
        seconds = record.draft_s + record.verify_s + max(record.host_s, 0.0)
        if record.scored == 1 and not record.draft_calls:
            self.plain_s.append(seconds)
            self.steps_left = max(0, self.steps_left - 1)
        elif self.plain_s:
            calls = seconds / median(self.plain_s)
            self.lost = max(self.lost + calls - record.new, -self.GAIN)
            if self.lost > self.LOSS:
                self.steps_left, self.pause, self.lost = self.pause, 2 * self.pause, 0.0
            elif self.lost == -self.GAIN:
                self.pause = self.PAUSE


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
