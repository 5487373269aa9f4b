"""Limit how much time drafting may lose against plain decoding, by measured step times."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ouroboros.trace import StepRecord

LONG_READ = 16  # reading at most this many uncached tokens before a draft call is not priced


class Guard:
    """Decides which steps are plain (without a draft), and corrects the predicted costs of calls.

    A step's gain, in tokens, is its number of new tokens minus its time / the time of a plain step;
    a single loss counts as at most SPIKE. The time of a plain step is the median of the last five,
    scaled by the predicted cost of a call at the current context length.

    - Within a prompt: when the gains have fallen by LOSS (plus a quarter of `credit`) below where
      they began or GAIN below their peak, the next PAUSE steps are plain. Each further loss doubles
      the pause. The pause ends with the prompt.
    - Across prompts: `credit` starts at START and sums all gains, up to MOST; each plain step adds
      SHARE. If it is negative and the last two prompts with drafting both lost, the next prompt
      begins with plain steps, as many as restore `credit` to 0, and continues in the following
      prompts if it ends earlier. Target calls are then priced as measured.

    A prompt's first step, which includes the prefill, is not counted. The first three steps of a
    run are plain. A step in which the draft model reads uncached text changes `credit` only, by its
    whole loss. `draft_price` corrects the cost of draft calls: the median of measured / predicted
    times, limited to a factor of LIMIT. `node_price` corrects the cost of target calls: the
    measured minus the predicted cost per node, in target calls of one node. Without step times, as
    in replays, nothing is paused or corrected.
    """

    LOSS, GAIN, PAUSE, SPIKE = 1.0, 4.0, 48, 2.0
    START, MOST, SHARE = 2.0, 8.0, 0.01
    STEPS, LIMIT, MOVED = 25, 2.0, 0.1

    def __init__(self) -> None:
        self.plain: deque[tuple[float, float]] = deque(maxlen=5)  # target's, whole step's time
        self.node_prices: deque[float] = deque(maxlen=self.STEPS)
        self.draft_prices: deque[float] = deque(maxlen=self.STEPS)
        self.draft_price, self.node_price = 1.0, 0.0
        self.credit, self.losing, self.net = self.START, 0, 0.0
        self.begin_prompt()

    def begin_prompt(self) -> None:
        """Begin a prompt: end the pause, or begin one if the last prompts used up the credit."""
        if self.net:
            self.losing = self.losing + 1 if self.net < 0 else 0
        self.net = self.lost = 0.0
        self.first, self.pause, self.steps_left = True, self.PAUSE, 0 if self.plain else 3
        self.repriced = self.credit < 0 and self.losing > 1
        if self.repriced:
            self.steps_left = math.ceil(-self.credit / self.SHARE)

    def correct_prices(self) -> bool:
        """Update the cost corrections of nodes and draft calls. Return whether one changed; a
        change of the draft's counts only above the relative threshold MOVED."""
        repriced, self.repriced = self.repriced, False
        if repriced and self.node_prices:
            self.node_price = median(self.node_prices)
        if len(self.draft_prices) >= 5:
            price = min(max(median(self.draft_prices), 1 / self.LIMIT), self.LIMIT)
            if abs(price / self.draft_price - 1) > self.MOVED:
                self.draft_price, repriced = price, True
        return repriced

    def observe(self, step: StepRecord, call: float, verifying: float, drafting: float) -> None:
        """Count a step. `call`, `verifying` and `drafting` are uncorrected predicted costs: of a
        plain call, of the step's target call, and of its draft calls."""
        first, self.first = self.first, False
        reading = step.draft_caught_up > LONG_READ
        seconds = step.draft_s + step.verify_s + max(step.host_s, 0.0)
        if step.scored == 1 and not step.draft_calls:
            self.steps_left = max(0, self.steps_left - 1)
            if not first:
                self.plain.append((step.verify_s / call, seconds / call))
            self.credit = min(self.credit + self.SHARE, self.MOST)
        elif self.plain and not first:
            call_s, step_s = (call * median(times) for times in zip(*self.plain, strict=True))
            if step.scored > 1 and call_s:
                extra = step.verify_s / call_s - verifying / call
                self.node_prices.append(extra / (step.scored - 1))
            if drafting and call_s and not reading:
                self.draft_prices.append(step.draft_s / call_s * call / drafting)
            gain = step.new - seconds / step_s
            gain = gain if reading else max(gain, -self.SPIKE)
            self.net += gain
            self.credit = min(self.credit + gain, self.MOST)
            self.lost = max(self.lost - (0.0 if reading else gain), -self.GAIN)
            if self.lost > self.LOSS + max(self.credit, 0.0) / 4:
                self.steps_left, self.pause, self.lost = self.pause, 2 * self.pause, 0.0
            elif self.lost == -self.GAIN:
                self.pause = self.PAUSE
