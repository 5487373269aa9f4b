"""Decide draft calls and tree sizes jointly for all sequences of a batch.

The sequences of a draft call are chosen to maximize their total gain minus the cost of the call; if
that is not above 0, no call is made. The nodes to verify are the most probable of all trees, as
many as are worth the larger target call. If neither drafting nor verifying pays, the step is plain
decoding. The unit of cost is a joint target call of one node per sequence; a token is worth its
average cost so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ouroboros.costs import Costs
from ouroboros.drafters.draft_tree.grow import CALL_FACTOR
from ouroboros.drafters.draft_tree.state import SIZES

HOST_MS = 0.15  # default host time per step and sequence beyond plain decoding's


class JointCosts:
    """Predicted times of calls shared by `size` sequences: `target_ms[n - 1]` and `draft_ms[n - 1]`
    for n nodes in total. `contexts`: cached tokens per sequence (in the target, in the draft)."""

    def __init__(self, costs: Costs, contexts: Sequence[int], size: int) -> None:
        self.size, nodes = size, size * (SIZES - 1)
        pair = costs.target, costs.draft or costs.target
        self.target_ms, self.draft_ms = (
            surface.calls_ms(range(1, nodes + 1), size * context)
            for surface, context in zip(pair, contexts, strict=True)
        )
        self.plain_ms = float(self.target_ms[size - 1])
        self.host_ms = costs.host_of("ouroboros") - costs.host_of("greedy") or HOST_MS

    @property
    def verify(self) -> list[float]:
        """The milliseconds of a target call on 1, 2, ... nodes of each sequence."""
        return self.target_ms[self.size - 1 :: self.size].tolist()

    @property
    def further_draft(self) -> list[float]:
        """The milliseconds that further nodes add to a draft call of one node per sequence.

        Entry i is for i + 1 further nodes per sequence, each assumed to cost as much as the first.
        """
        each = self.draft_ms[2 * self.size - 1] - self.draft_ms[self.size - 1]
        return (each * np.arange(1, SIZES)).tolist()

    @cached_property
    def saved_share(self) -> float:
        """The share of plain decoding's time that speculative decoding with the best draft length
        would save if 70 % of the draft tokens were accepted."""
        lengths = np.arange(9)
        tokens = np.cumsum(0.7**lengths)
        spent = np.array(self.verify)[lengths] + lengths * self.draft_ms[self.size - 1]
        return 1.0 - float((spent / tokens).min()) / self.plain_ms


def share_draft_call(rows: Sequence[Any]) -> list[bool]:
    """Return for each of `rows` (`Ouroboros` drafters) whether it takes part in the next draft
    call. Add the call's milliseconds to the `drafting_ms` of each participant."""
    joint: JointCosts = rows[0].joint
    states = [row.grower.states for row in rows]
    gains = [state["gain"].item() for state in states]
    counts = [state["pending"].item() for state in states]
    order = sorted(range(len(rows)), key=lambda row: -gains[row] / counts[row])
    planning_ms = 0.0 if any(row.drafting_ms for row in rows) else len(rows) * joint.host_ms
    price = joint.size * _tokens_per_cost(states)
    gain, nodes, best = 0.0, 0, (0.0, 0.0, 0)  # worth, milliseconds of the call, sequences
    for count, row in enumerate(order, start=1):
        gain += gains[row]
        nodes += counts[row]
        spent_ms = joint.draft_ms[nodes - 1].item()
        worth = CALL_FACTOR * gain - price * (spent_ms + planning_ms) / joint.plain_ms
        if worth > best[0]:
            best = worth, spent_ms, count
    taken = set(order[: best[2]])
    for row in taken:
        rows[row].drafting_ms += best[1]
    return [row in taken for row in range(len(rows))]


def share_nodes(rows: Sequence[Any]) -> list[int]:
    """Return how many nodes of each drafter's tree to verify, the root included (1: a plain step).
    Store the step's cost in the drafters' states."""
    joint: JointCosts = rows[0].joint
    states, offers = [row.grower.states for row in rows], [row.offer for row in rows]
    every = np.sort(np.concatenate(offers))[::-1]
    rate = _tokens_per_cost(states)
    calls = joint.target_ms[joint.size - 1 : joint.size + len(every)] / joint.plain_ms
    worth = np.cumsum(every) - joint.size * rate * (calls[1:] - 1)
    best = int(worth.argmax()) + 1 if len(every) else 0
    drafting_ms = max(row.drafting_ms for row in rows)
    planning = joint.size * rate * len(rows) * joint.host_ms / joint.plain_ms
    if best and worth[best - 1] <= (0.0 if drafting_ms else planning):
        best = 0
    sizes = [1 + int(np.count_nonzero(own >= every[best - 1])) if best else 1 for own in offers]
    cost = float(calls[best]) + drafting_ms / joint.plain_ms
    for state, size in zip(states, sizes, strict=True):
        state["spent"] = cost - state["verify_cost"][0, size]  # `learn` adds verify_cost[size]
        state["shared_rate"] = rate
    return sizes


def _tokens_per_cost(states: Sequence[Any]) -> float:
    """Return the tokens per unit of cost so far: all sequences' tokens / all sequences' cost."""
    tokens = cost = 0.0
    for state in states:
        tokens += state["tokens"].item()
        cost += state["cost"].item()
    return tokens / cost
