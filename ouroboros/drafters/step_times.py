"""The times of steps: call costs measured at load, corrected by the times of later steps."""

from __future__ import annotations

import numpy as np

from ouroboros.core.trace import StepRecord

LONG_READ = 16  # reading up to this many uncached tokens before a draft call counts as free
DECAY = 0.96  # factor on earlier steps at each new one
TIE = 0.003  # how strongly the price of nodes follows the price of calls, while few are known
PRIOR = 2.0  # steps for which assumptions count
CLIP, UNCLIPPED = 1.3, 3  # after UNCLIPPED steps, a time counts as at most CLIP times the expected
# one, because programs interrupt each other
REFRESH = 8  # steps between two corrections
PLAIN_MS, TEXT_MS, CALL_MS = 0.2, 0.4, 0.1  # assumed host times: of a plain step, of one that
# drafts from the text, and of a draft call


class CallTimes:
    """Corrects the milliseconds t(n) of calls of n nodes to call x t(1) + nodes x (t(n) - t(1)).

    The two factors are fitted to measured times by least squares; newer times count more. Until
    there are some, both are `call` of another model, `like`.
    """

    def __init__(self, like: CallTimes | None = None) -> None:
        self._like, self._count = like, 0
        self._weight = self._more = self._squares = 0.0  # sums of 1, (t(n) - t(1)) / t(1), squares
        self._times = self._products = 0.0  # sums of measured times / t(1), and their products

    def factors(self) -> tuple[float, float]:
        """Return `call` and `nodes` (see the class)."""
        weight, times = self._weight, self._times
        if self._like is not None:
            weight, times = weight + PRIOR, times + PRIOR * self._like.factors()[0]
        elif not self._count:
            return 1.0, 1.0
        a, b, d = weight + TIE, self._more - TIE, self._squares + TIE
        scale = 1.0 / (a * d - b * b)
        call = scale * (d * times - b * self._products)
        return max(call, 0.0), max(scale * (a * self._products - b * times), 0.0)

    def observe(self, ms: float, table: np.ndarray, nodes: int) -> None:
        """Learn from a call of `nodes` nodes that took `ms`; `table` has the milliseconds of calls
        of 1, 2, ... nodes at load."""
        single_ms = table.item(0)  # a float, which is faster than `table[0]`
        more = table.item(min(nodes, len(table)) - 1) / single_ms - 1.0
        measured = ms / single_ms
        if self._count >= UNCLIPPED:
            call, node = self.factors()
            measured = min(measured, CLIP * (call + node * more))
        self._count += 1
        self._weight = DECAY * self._weight + 1.0
        self._more = DECAY * self._more + more
        self._squares = DECAY * self._squares + more * more
        self._times = DECAY * self._times + measured
        self._products = DECAY * self._products + measured * more

    def corrected(self, table: np.ndarray) -> np.ndarray:
        """Return the corrected milliseconds of calls of 1, 2, ... nodes."""
        call, node = self.factors()
        return node * table + (call - node) * table.item(0)


class Mean:
    """A mean in which newer values count more, and large ones as at most CLIP times the mean."""

    def __init__(self, value: float) -> None:
        self.value, self._count = value, PRIOR

    def observe(self, value: float) -> None:
        """Count a value."""
        self._count = DECAY * self._count + 1.0
        self.value += (min(value, CLIP * self.value) - self.value) / self._count


class StepTimes:
    """The times of target calls, draft calls and the host, learned from steps."""

    def __init__(self) -> None:
        self.target = CallTimes()
        self.draft = CallTimes(like=self.target)
        self.plain_ms, self.text_ms, self.call_ms = Mean(PLAIN_MS), Mean(TEXT_MS), Mean(CALL_MS)
        self.steps = 0
        self._queued: list[tuple[StepRecord, np.ndarray, np.ndarray]] = []

    @property
    def due(self) -> bool:
        """Whether the corrections should be applied again: often at first."""
        return self.steps % REFRESH == 0 or self.steps < REFRESH

    def observe(self, step: StepRecord, target: np.ndarray, draft: np.ndarray) -> None:
        """Queue a step for the next `corrected`, with the milliseconds at load of target and draft
        calls of 1, 2, ... nodes. A sequence's first step, which includes the prefill, must be left
        out."""
        self.steps += 1
        self._queued.append((step, target, draft))  # a call leaves cold caches: learn from many

    def _learn(self, step: StepRecord, target: np.ndarray, draft: np.ndarray) -> None:
        self.target.observe(1e3 * step.verify_s, target, step.scored)
        host_ms, calls = 1e3 * max(step.host_s, 0.0), step.draft_calls
        if not calls:
            (self.text_ms if step.scored > 1 else self.plain_ms).observe(host_ms)
        elif step.draft_caught_up <= LONG_READ:
            self.call_ms.observe(max(0.0, host_ms - self.text_ms.value) / calls)
            fed = round((step.draft_scored + step.draft_caught_up) / calls)
            self.draft.observe(1e3 * step.draft_s / calls, draft, max(1, fed))

    def corrected(self, target: np.ndarray, draft: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learn from the queued steps. Return the milliseconds of steps by the nodes of their
        target call, 1, 2, ..., host time included, and those that a draft call of 1, 2, ... nodes
        adds to a step."""
        for queued in self._queued:
            self._learn(*queued)
        self._queued.clear()
        calls = self.target.corrected(target)
        steps = calls + self.text_ms.value
        steps[0] = calls[0] + self.plain_ms.value
        return steps, self.draft.corrected(draft) + self.call_ms.value
