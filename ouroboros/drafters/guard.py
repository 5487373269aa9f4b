"""Use measured step times to limit the time that drafting can lose against plain decoding."""

from __future__ import annotations

from collections import deque
from statistics import median

from ouroboros.trace import StepRecord

LONG_READ = 16  # reading up to this many uncached tokens before a draft call counts as free


class Guard:
    """Decides which steps are plain (without a draft), and corrects the predicted costs of calls.

    A step's *gain* is its number of new tokens minus (its time / the time of a plain step), at
    least -SPIKE. The time of a plain step is the median of the last five, scaled to the current
    context length by the predicted costs of calls. It is at most the step's own time without its
    draft calls. Because the whole machine may have been slower, losses are computed again after
    CHECK plain steps in a row, from the fastest of these; the smaller loss counts.

    - Within a prompt: `lost` sums the losses minus the gains, and never falls below -GAIN. If it
      exceeds LOSS + `credit` / 4, drafting pauses for PAUSE steps. After CHECK of these, losses are
      computed again: if `lost` is now within the limit, drafting resumes; otherwise `lost` restarts
      at 0. Pauses double until `lost` falls to -GAIN, and end with the prompt.
    - Across prompts: `credit` starts at START and sums all gains, up to MOST; each plain step adds
      SHARE. If a prompt begins with a negative `credit`, and the last two prompts with drafts both
      lost time, steps are plain until `credit` reaches 0, even over several prompts.

    The first three steps of a run are plain. A prompt's first step is not counted, because it
    includes the prefill. If the draft model reads more than LONG_READ uncached tokens in a step,
    the step counts in `credit` only, without the limit -SPIKE.

    Two predicted costs are corrected:
    - draft calls: multiplied by `draft_price`, the median of measured / predicted times in target
      calls, from 1 / LIMIT to LIMIT. The unit is bounded by the step's own target call (TRUST)
    - target calls: `node_price` is added per node, the median of (measured - predicted cost) /
      draft nodes, where a target call of one node costs 1; updated when `credit` stops drafting
    Without step times, as in replays, nothing is paused or corrected.
    """

    LOSS, GAIN, PAUSE, SPIKE, CHECK = 1.0, 4.0, 48, 2.0, 2
    START, MOST, SHARE = 1.0, 8.0, 0.01
    STEPS, LIMIT, MOVED, TRUST = 25, 2.0, 0.1, 1.25

    def __init__(self) -> None:
        self.plain: deque[tuple[float, float]] = deque(maxlen=5)  # (target, step) seconds / cost
        self.node_prices: deque[float] = deque(maxlen=self.STEPS)
        self.draft_prices: deque[float] = deque(maxlen=self.STEPS)
        self.draft_price, self.node_price = 1.0, 0.0
        self.credit, self.losing, self.net = self.START, 0, 0.0
        self.begin_prompt()

    @property
    def paused(self) -> bool:
        """Whether the next step is plain."""
        return self.pause_left > 0 or (self.repaying and self.credit < 0)

    def begin_prompt(self) -> None:
        """Begin a prompt: end a pause, or begin one if `credit` stops drafting (see `Guard`)."""
        if self.net:
            self.losing = self.losing + 1 if self.net < 0 else 0
        self.net = self.lost = 0.0
        self.losses: list[tuple[int, float, float]] = []  # new tokens, seconds / cost, gain
        self.plain_run = 0  # plain steps since the last one with a draft
        self.first, self.pause, self.pause_left = True, self.PAUSE, 0 if self.plain else 3
        self.repaying = self.repriced = self.credit < 0 and self.losing > 1

    def correct_prices(self) -> bool:
        """Update `node_price` and `draft_price`; return whether either changed. `draft_price` stays
        the same unless it would change by more than the fraction MOVED."""
        repriced, self.repriced = self.repriced, False
        if repriced and self.node_prices:
            self.node_price = median(self.node_prices)
        if len(self.draft_prices) >= 5:
            price = min(max(median(self.draft_prices), 1 / self.LIMIT), self.LIMIT)
            if abs(price / self.draft_price - 1) > self.MOVED:
                self.draft_price, repriced = price, True
        return repriced

    def observe(self, step: StepRecord, call: float, verifying: float, drafting: float) -> None:
        """Record a step. Predicted costs, uncorrected and in any one unit: `call` of a target call
        of one node, `verifying` of the step's target call, `drafting` of all its draft calls."""
        first, self.first = self.first, False
        seconds = step.draft_s + step.verify_s + max(step.host_s, 0.0)
        if step.scored == 1 and not step.draft_calls:
            self.pause_left = max(0, self.pause_left - 1)
            self.credit = min(self.credit + self.SHARE, self.MOST)
            if not first:
                self.plain.append((step.verify_s / call, seconds / call))
                self.plain_run += 1
                if self.plain_run == self.CHECK:
                    self._compare_with_later_steps()
        elif self.plain and not first:
            self.plain_run = 0
            call_s, step_s = (call * median(times) for times in zip(*self.plain, strict=True))
            reading = step.draft_caught_up > LONG_READ
            if step.scored > 1 and call_s:
                extra = step.verify_s / call_s - verifying / call
                self.node_prices.append(extra / (step.scored - 1))
            if drafting and call_s and step.verify_s and not reading:
                # this step's own target call limits `call_s`
                least = step.verify_s * call / verifying / self.TRUST
                call_s = min(max(call_s, least), step.verify_s)
                self.draft_prices.append(step.draft_s / call_s * call / drafting)
            gain = step.new - seconds / min(step_s, seconds - step.draft_s)
            if reading:
                self._count(gain, 0.0)
                return
            gain = max(gain, -self.SPIKE)
            self._count(gain, gain)
            if gain < 0:
                self.losses.append((step.new, seconds / call, gain))
            if self._lost_too_much():
                self.pause_left, self.pause = self.pause, 2 * self.pause
            elif self.lost == -self.GAIN:
                self.pause = self.PAUSE

    def _count(self, gain: float, in_prompt: float) -> None:
        self.net += gain
        self.credit = min(self.credit + gain, self.MOST)
        self.lost = max(self.lost - in_prompt, -self.GAIN)

    def _lost_too_much(self) -> bool:
        return self.lost > self.LOSS + max(self.credit, 0.0) / 4

    def _compare_with_later_steps(self) -> None:
        """Compute the losses before the last CHECK plain steps again, from the fastest of these,
        and keep the smaller values; end a pause that is no longer justified."""
        plain = min(seconds for _, seconds in list(self.plain)[-self.CHECK :])
        for new, spent, gain in self.losses:
            less = max(new - spent / plain, -self.SPIKE) - gain
            self._count(max(less, 0.0), max(less, 0.0))
        self.losses.clear()
        if self.pause_left and self._lost_too_much():
            self.lost = 0.0
        elif self.pause_left:
            self.pause_left, self.pause = 0, max(self.pause // 2, self.PAUSE)
