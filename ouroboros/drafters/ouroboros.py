"""Ouroboros: drafting phrase by phrase, on a tree that grows while nodes are worth their cost.

It applies the ideas of the paper (Zhao et al., EMNLP 2024, arXiv 2402.13720) to one tree. Nodes
come from phrases: n-grams of the text, and the target's earlier predictions at rejected nodes
(verification makes phrases). The draft model is called if the expected gain exceeds the cost, and
scores many nodes per call (phrases speed up drafting). Phrases also continue after the draft
model's tokens (phrases lengthen the draft). Phrases may be kept between prompts. The published
algorithm is `OuroborosPaper`.

Invariant: estimates only change *which tokens are proposed*; `decode` alone decides which are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ouroboros.calls import Bid, Steps, predict
from ouroboros.core.select import Ranked, TokenSelector, TopKRecorder, argmax
from ouroboros.core.trace import StepRecord
from ouroboros.core.tree import TokenTree
from ouroboros.costs import Costs, Surface
from ouroboros.drafters.arms import Arm, Arms, Outcome
from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import RANKS, RUNNERS, SIZES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower, warm_up_jit
from ouroboros.drafters.joint_budget import JointCosts, share_draft_call, share_nodes
from ouroboros.drafters.pool import check_pool
from ouroboros.drafters.step_times import LONG_READ, StepTimes
from ouroboros.engine.eager import read_alone
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence

READ_AHEAD = 16  # see `Ouroboros`: when the draft's prefill pays off
PLANNED = 5.0  # prior: steps with a planned draft call in READ_AHEAD tokens
LONGEST_PAUSE = 5  # even if drafting never pays, a batch plans every 2**5th step
DIP = 1.3  # larger calls can be faster by at most this factor: kernels compute whole tiles
SMALL, RISE = (
    3,
    0.1,
)  # nodes 2 to SMALL + 1 add at most RISE of a call each, or what later nodes add
MIN_CONTEXT = 128  # contexts are rounded up to this times a power of two


class Ouroboros:
    """The Ouroboros drafter, with a draft model or (`draft=None`) with phrases alone.

    - `max_nodes`: size of the largest tree, root included; `children`: largest number of children
      of a node (1: a chain); `draft_nodes`: largest number of new nodes in one draft call
    - `recycle`: turn the target's predictions at rejected nodes into phrases
    - `runners_up`: also recycle the target's most probable tokens after every node (`recycle=False`
      turns this off). The token selector must then support `ranked`
    - `judge`: also use the draft model's ranking after nodes that have children from phrases
      (False: only after nodes without children)
    - `costs`: call costs: a `Costs`, a name ("flat": a GPU, "epyc": a few CPU cores) or a file; by
      default "flat" if the draft is on a GPU, else "epyc"
    - `weights`: weights of the probability estimators, or their file; by default the shipped ones
    - `pool_state`: "cold" empties the phrase memory for each prompt, "task" keeps it from prompt to
      prompt, "loaded" starts each prompt from `pool`, the `state_dict` of another drafter
    - `adapt`: learn from the times of the steps what calls take (`StepTimes`; not in batches), and
      keep what was learned about the draft from prompt to prompt. Proposals then depend on the
      clock, the output never does; choose False for reproducible proposals

    Each step is plain, drafts from the text alone, or also with the draft model, whichever is
    fastest (`Arms`; not in batches). The draft model reads the prompt at its first call, if draft
    calls will probably save more than this prefill takes. For this estimate, as many tokens follow
    as were generated so far + READ_AHEAD (at most the budget), and draft calls stay as frequent as
    planned so far. If `costs` has no prefill times, the prompt is always read; in batches the time
    is estimated from call costs. In the first step after a long prompt only the root is proposed,
    so the first token comes as early as in greedy decoding.
    Raises `ValueError` for settings out of range.
    """

    def __init__(
        self,
        draft: CachedModel | None = None,
        *,
        max_nodes: int = 64,
        children: int = 5,
        draft_nodes: int = 24,
        recycle: bool = True,
        runners_up: bool = False,
        judge: bool = True,
        adapt: bool = True,
        costs: str | Costs | None = None,
        weights: str | Weights | None = None,
        pool_state: Literal["cold", "task", "loaded"] = "cold",
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
        )
        self.reads_rejected = recycle
        self.ranks = RUNNERS if recycle and runners_up else 0
        self.costs = costs_or_default(costs, draft)
        self.pool_state = pool_state
        self.carries_state = pool_state == "task"
        self._loaded = pool if pool_state == "loaded" else None
        if pool is not None:
            self.load_state_dict(pool)
        self._times = StepTimes() if adapt else None
        self._arms, self._arm = Arms(), Arm.PLAIN
        self._ranking = TopKRecorder(argmax, RANKS)
        self._tables: list[np.ndarray] = []  # costs at load for the sequence's length
        self._tables_until = 0  # longest sequence for which `_tables` hold
        states = self.grower.states
        self._outcomes = {  # views of the grower's record, which are faster than names
            name: (states[f"{name}_tokens"], states[f"{name}_cost"])
            for name in ("step", "text", "drafted")
        }
        self._batch_size = self._step = 1
        self.joint: JointCosts | None = None
        self.offer, self.drafting_ms = np.empty(0), 0.0
        self._pause = 0
        self._started = False  # whether the prompt's first step, with the prefill, is over
        self._proposed: TokenTree | None = None
        self._prompt_len = self._planned = 0

    def state_dict(self) -> dict:
        """Return the state kept between prompts: phrases and recycled predictions (see
        `TreeGrower.state_dict`)."""
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
        self._tables, self._tables_until = [], 0
        self._proposed, self._started = None, False
        if self._times is None:
            self._arms = Arms()
            self.grower.state.calibration[:] = 0.0
        self._arms.begin_prompt()
        self._prompt_len = self._planned = 0
        self.draft_sequence = self.draft.new_sequence() if self.draft is not None else None
        self.grower.start(seed=choose.noise_seed, temperature=choose.temperature)

    def set_batch(self, size: int, number: int) -> None:
        """Set the number of sequences that share the calls of the next step, and its number."""
        self._step = number
        if size != self._batch_size:
            self._batch_size, self._tables_until = size, 0

    def propose(self, tokens: Sequence[int], budget: int) -> Steps[TokenTree]:
        """Return the tree that maximizes expected gain minus cost, at most `budget` - 1 deep; the
        root alone while drafting is paused, and in the first step after a long prompt."""
        first_step, self._prompt_len = not self._prompt_len, self._prompt_len or len(tokens)
        shared = self._batch_size > 1
        if shared and self._step % (1 << self._pause):
            self.grower.count_plain_step()
            return TokenTree.chain(tokens[-1], ())
        self._update_costs(tokens)
        grower, draft, sequence = self.grower, self.draft, self.draft_sequence
        arm = Arm.TEXT if draft is None else Arm.DRAFT
        if not shared:
            arm = self._arms.next(arm)
        if arm == Arm.PLAIN or (first_step and read_alone(tokens)):
            self._arm = Arm.PLAIN
            return TokenTree.chain(tokens[-1], ())
        self._arm, self.drafting_ms = arm, 0.0
        room = draft.room(sequence, tokens) if arm == Arm.DRAFT and draft and sequence else -1
        if grower.begin(tokens, budget - 1, room):
            self._planned += 1
            if not self._reading_pays(tokens, budget):
                grower.decline()
        tree = grower.draft_tree()
        while tree is not None:
            assert draft is not None and sequence is not None
            if shared and not (yield Bid(share_draft_call, self, True)):
                grower.decline()
                break
            yield from predict(draft, sequence, tokens, tree, self._ranking)
            tree = grower.add_rankings(*self._ranking.last)
        size = 0
        if shared:
            self.offer = grower.offer()
            size = yield Bid(share_nodes, self, False)
            self._pause = 0 if size > 1 or self.drafting_ms else min(self._pause + 1, LONGEST_PAUSE)
        self._proposed = grower.proposal(size)
        return self._proposed

    def observe_ranked(self, tree: TokenTree, ranked: Ranked, path: Sequence[int]) -> None:
        """Store the target's rankings after nodes of the proposed tree, for `observe`."""
        if tree is self._proposed:
            self.grower.store_rankings(ranked.ids, ranked.shares)

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from the verified tree; keep accepted nodes in the draft model's cache. Do nothing
        if the tree is not the proposed one, as after pruning near the context limit."""
        if tree is not self._proposed:
            return
        drafted = self.grower.drafted_prefix(path)
        if drafted and self.draft is not None and self.draft_sequence is not None:
            self.draft.accept(self.draft_sequence, drafted)
        self.grower.learn(chosen, path)

    def observe_step(self, record: StepRecord) -> None:
        """Learn from the step's times and tokens."""
        if self._batch_size > 1 or not self._tables:
            return
        if self._arm == Arm.PLAIN:
            self._arms.observe(Arm.PLAIN, Outcome(1.0, 1.0))
        elif (step := self._outcome("step")).cost:
            called = self.grower.states["step_calls"].item() > 0
            self._arms.observe(self._arm, step, called=called)
            if (text := self._outcome("text")).cost:
                self._arms.compare(self._outcome("drafted"), text)
        if self._times is not None and self._started:
            self._times.observe(record, *self._tables)
        self._started = True

    def _outcome(self, name: str) -> Outcome:
        """Return an outcome that the grower has written, and set its cost to 0."""
        tokens, cost = self._outcomes[name]
        outcome = Outcome(tokens.item(), cost.item())
        cost[0] = 0.0
        return outcome

    def _reading_pays(self, tokens: Sequence[int], budget: int) -> bool:
        """Return whether drafting is worth the time in which the draft model reads its uncached
        tokens (the prompt, or tokens added during a pause); see `Ouroboros`."""
        draft, sequence, costs = self.draft, self.draft_sequence, self.costs
        if draft is None or sequence is None:
            return False
        unread, generated = draft.unread(sequence, tokens), len(tokens) - self._prompt_len
        joint, to_come = self.joint, min(budget, READ_AHEAD + generated)
        if unread <= LONG_READ:
            return True
        if joint is not None:  # all sequences wait, one gains
            price = costs.draft_reading_ms(unread, len(tokens)) / joint.plain_ms
            return joint.saved_share * to_come >= price * joint.size
        if not costs.reading_ms:
            return True
        call_ms = costs.target.call_ms(1, min(len(tokens), max(costs.target.ms)))
        price = costs.draft_reading_ms(unread, len(tokens)) / call_ms
        calls = to_come * (self._planned + PLANNED) / (generated + READ_AHEAD)
        return self._arms.pays(price, calls)

    def _update_costs(self, tokens: Sequence[int]) -> None:
        """Set the grower's call costs for the models' context lengths (rounded up, see
        MIN_CONTEXT), corrected by the times of earlier steps, if the sequence has outgrown them or
        corrections are due."""
        times, size, length = self._times, self._batch_size, len(tokens)
        if length <= self._tables_until and not (times and times.due and size == 1):
            return
        draft, sequence, tables = self.draft, self.draft_sequence, self.costs.tables
        start = draft.first_read(sequence, tokens) if draft and sequence else 0
        lengths = length, length - start
        contexts = tuple(max(MIN_CONTEXT, 1 << (read - 1).bit_length()) for read in lengths)
        self._tables_until = min(
            context + length - read for context, read in zip(contexts, lengths, strict=True)
        )
        if size > 1:
            if (contexts, size) not in tables:
                tables[contexts, size] = JointCosts(self.costs, contexts, size)
            self.joint = tables[contexts, size]
            self.grower.set_costs(self.joint.verify, self.joint.further_draft)
            return
        self.joint, self.grower.state.shared_rate = None, 0.0
        if contexts not in tables:
            pair = self.costs.target, self.costs.draft or self.costs.target
            tables[contexts] = [cost_table(*at) for at in zip(pair, contexts, strict=True)]
        self._tables = target, drafting = tables[contexts]
        if times is not None:
            target, drafting = times.corrected(target, drafting)
        self.grower.set_costs(target, drafting)


def costs_or_default(costs: str | Costs | None, draft: CachedModel | None) -> Costs:
    """Return call costs: `costs` itself, or loaded by name or file; by default "flat" if the draft
    is on a GPU, else "epyc"."""
    device = getattr(draft, "device", None)
    costs = costs or ("epyc" if device is None or device.type == "cpu" else "flat")
    return costs if isinstance(costs, Costs) else Costs.load(costs)


def cost_table(surface: Surface, context: float) -> np.ndarray:
    """Return the milliseconds of calls of 1, 2, ... nodes, up to the largest known size. A context
    beyond the longest known one counts as the longest. Calls that were measured while other
    programs ran may be off by more than a node costs. So a call counts as at most DIP times a
    larger one, and in small calls a node adds at most RISE of the call, or what later nodes add.
    """
    largest = int(min(*(max(row) for row in surface.ms.values()), SIZES - 1))
    ms = surface.calls_ms(range(1, largest + 1), min(context, max(surface.ms)))
    ms = np.minimum(ms, DIP * np.minimum.accumulate(ms[::-1])[::-1])
    if largest > SMALL + 1:
        each = (ms[-1] - ms[SMALL]) / (largest - SMALL - 1)
        for at in range(SMALL - 1, -1, -1):
            ms[at] = max(ms[at], ms[at + 1] - max(each, RISE * ms[at + 1]))
    return ms
