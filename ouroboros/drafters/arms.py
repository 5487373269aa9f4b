"""Choose how the next step drafts: not at all, from the text, or also with the draft model."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Arm(IntEnum):
    """A way to draft."""

    PLAIN = 0
    TEXT = 1
    DRAFT = 2


DECAY = 0.97  # factor on earlier steps at each new one
PRIOR = {Arm.TEXT: 1.3, Arm.DRAFT: 1.75}  # tokens per cost that are assumed at first
WEIGHT = 4.0  # weight of that assumption, as a cost
CARRIED = 12.0  # earlier prompts count for at most this much cost
GAIN, GAIN_STEPS = 0.25, 60.0  # assumed gain of a step with draft calls, and its weight in steps
NEW_STEPS = 12.0  # weight of that gain in a new prompt: prompts differ much from each other
GAIN_DECAY = 0.995  # factor on earlier such steps at each new one
PLAIN_RATE = 0.95  # of plain steps; a little less than 1, because planning alone costs little
TRIAL_STEPS = 4
TRIAL_SHARE, FIRST_LOSS = 0.01, 2.0  # trials may lose this share of all cost, plus this


class Outcome(NamedTuple):
    """New tokens, and the cost of the calls that they took."""

    tokens: float
    cost: float


class Arms:
    """Chooses the arm of each step.

    Rates are tokens per cost over the last steps; the cost of a plain step is 1. Drafting is used
    while its rate exceeds plain decoding's. The draft model is used while its average gain over
    the text is positive: the extra tokens, valued at the text's cost per token in these steps,
    minus the extra cost. The gain is averaged over this prompt's steps with draft calls, with the
    average of all prompts as the prior. Unused arms are tried for a few steps while trials have
    lost little.
    """

    def __init__(self) -> None:
        self._tokens = {arm: rate * WEIGHT for arm, rate in PRIOR.items()}
        self._cost = dict.fromkeys(PRIOR, WEIGHT)
        self._overall = GAIN * GAIN_STEPS, GAIN_STEPS  # gain and steps of all prompts
        self._gain, self._steps = GAIN * NEW_STEPS, NEW_STEPS
        self._beside = Outcome(PRIOR[Arm.TEXT] * WEIGHT, WEIGHT)  # text alone, in draft steps
        self._spent, self._lost, self._trial = 0.0, -FIRST_LOSS, 0

    def begin_prompt(self) -> None:
        """Begin a prompt: earlier ones count less."""
        self._trial = 0
        for arm, cost in self._cost.items():
            share = min(1.0, CARRIED / cost)
            self._tokens[arm], self._cost[arm] = share * self._tokens[arm], share * cost
        gain, steps = self._overall
        self._gain, self._steps = gain / steps * NEW_STEPS, NEW_STEPS

    def rate(self, arm: Arm) -> float:
        """Return an arm's tokens per cost."""
        return self._tokens[arm] / self._cost[arm] if arm else PLAIN_RATE

    def _best(self, most: Arm) -> Arm:
        best = most if self._gain > 0.0 else min(most, Arm.TEXT)
        return best if self.rate(best) > PLAIN_RATE else Arm.PLAIN

    def next(self, most: Arm) -> Arm:
        """Return the arm of the next step, up to `most`."""
        best = self._best(most)
        if best == most or not (self._trial or self._affords(0.0)):
            return best
        self._trial = self._trial - 1 if self._trial else TRIAL_STEPS - 1
        return most if self._gain > 0.0 else Arm(best + 1)

    def pays(self, price: float, steps: float) -> bool:
        """Return whether the draft model is worth `price`, the cost of reading the prompt, if
        `steps` steps will call it; or else whether a trial is affordable, and charge the trial."""
        if self._gain <= 0.0:
            affordable = self._affords(price)
            self._lost += price if affordable else 0.0
            return affordable
        return self._gain / self._steps * steps >= price

    def _affords(self, price: float) -> bool:
        return self._lost + price < TRIAL_SHARE * self._spent

    def observe(self, arm: Arm, step: Outcome, *, called: bool = False) -> None:
        """Count a step; `called`: whether the draft model was called."""
        self._spent += step.cost
        used = arm if called else min(arm, Arm.TEXT)
        if used > (best := self._best(arm)):
            self._lost += max(0.0, step.cost - step.tokens / self.rate(best))
        if arm != Arm.PLAIN:
            self._count(arm, step)
            if arm == Arm.DRAFT and not called:
                self._count(Arm.TEXT, step)

    def compare(self, drafted: Outcome, text: Outcome) -> None:
        """Count the gain of a step with draft calls over drafting from the text alone (`text`)."""
        rate = max(PLAIN_RATE, self._beside.tokens / self._beside.cost)
        gain = (drafted.tokens - text.tokens) / rate - (drafted.cost - text.cost)
        tokens, cost = self._beside
        self._beside = Outcome(DECAY * tokens + text.tokens, DECAY * cost + text.cost)
        self._gain, self._steps = self._gain + gain, self._steps + 1.0
        total, steps = self._overall
        self._overall = GAIN_DECAY * total + gain, GAIN_DECAY * steps + 1.0
        self._count(Arm.TEXT, text)

    def _count(self, arm: Arm, step: Outcome) -> None:
        self._tokens[arm] = DECAY * self._tokens[arm] + step.tokens
        self._cost[arm] = DECAY * self._cost[arm] + step.cost
