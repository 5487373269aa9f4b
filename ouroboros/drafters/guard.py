"""Bounds what drafting may lose against plain decoding, by the measured times of steps."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ouroboros.trace import StepRecord

LONG_READ = 16  # up to this many unread tokens, a draft call's prefill is not priced


class Guard:
    """Choose which steps are plain, and correct the prices of calls.

    A step's gain is its new tokens less its time in plain steps, at least -SPIKE. A plain step's
    time is the median of the newest five, scaled by the price of a call at the present context.

    - Within a prompt, once drafting has lost LOSS since the prompt began or since it gained GAIN,
      the next PAUSE steps are plain, after another loss twice as many. A pause ends with the
      prompt.
    - Across prompts, `credit` sums the gains, from START, up to MOST. A quarter of it is added to
      LOSS. Each plain token adds SHARE. If it is negative after two losing prompts in a row, steps
      are plain until it is restored, and target calls are then priced as measured.

    A prompt's first step, which includes the prefill, is not counted. The first three steps of all
    are plain. Steps in which the draft reads text count toward `credit` only, all of their time.
    `draft_price` is the median of draft calls' measured times over their prices, within a factor
    LIMIT; `node_price` is the measured cost of a node beyond its price, in target calls. Without
    step times, as in replays, nothing is paused or corrected.
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
        """End a pause, and begin one if the last prompts used up the credit."""
        if self.net:
            self.losing = self.losing + 1 if self.net < 0 else 0
        self.net = self.lost = 0.0
        self.first, self.pause, self.steps_left = True, self.PAUSE, 0 if self.plain else 3
        self.repriced = self.credit < 0 and self.losing > 1
        if self.repriced:
            self.steps_left = math.ceil(-self.credit / self.SHARE)

    def correct_prices(self) -> bool:
        """Update the prices; return whether any moved (the draft's: by more than MOVED)."""
        repriced, self.repriced = self.repriced, False
        if repriced and self.node_prices:
            self.node_price = median(self.node_prices)
        if len(self.draft_prices) >= 5:
            price = min(max(median(self.draft_prices), 1 / self.LIMIT), self.LIMIT)
            if abs(price / self.draft_price - 1) > self.MOVED:
                self.draft_price, repriced = price, True
        return repriced

    def observe(self, step: StepRecord, call: float, verifying: float, drafting: float) -> None:
        """Count a step. `call`, `verifying` and `drafting` are the uncorrected prices of a plain
        call, of its target call and of its draft calls."""
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
