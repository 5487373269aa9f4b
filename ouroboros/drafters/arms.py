"""Choose how the next step drafts: not at all, from the text, or also with the draft model."""

from __future__ import annotations

from enum import IntEnum


class Arm(IntEnum):
    """A way to draft."""

    PLAIN = 0
    TEXT = 1
    DRAFT = 2


DECAY = 0.97  # factor on earlier steps at each new one
PRIOR = {Arm.TEXT: 1.3, Arm.DRAFT: 1.75}  # tokens per cost that are assumed at first
WEIGHT = 4.0  # the cost for which that assumption counts
CARRIED = 12.0  # earlier prompts count for at most this much cost
PLAIN_RATE = 0.95  # of plain steps; a little less than 1, because planning alone costs little
TRIAL_STEPS = 4
TRIAL_SHARE, FIRST_LOSS = 0.01, 2.0  # trials may lose this share of all cost, and this cost


class Arms:
    """Counts the tokens per cost of each arm over its last steps, and chooses the best one.

    The cost of a plain step is 1, so plain decoding makes one token per cost. Of a step with the
    draft model it becomes known what the text alone would have made, so these two are compared on
    the same text. An arm that is not used is tried again for a few steps, while trials have lost
    little.
    """

    def __init__(self) -> None:
        self._tokens = {arm: rate * WEIGHT for arm, rate in PRIOR.items()}
        self._cost = dict.fromkeys(PRIOR, WEIGHT)
        self._spent, self._lost, self._trial = 0.0, -FIRST_LOSS, 0

    def begin_prompt(self) -> None:
        """Begin a prompt: earlier ones count less."""
        self._trial = 0
        for arm, cost in self._cost.items():
            share = min(1.0, CARRIED / cost)
            self._tokens[arm], self._cost[arm] = share * self._tokens[arm], share * cost

    def rate(self, arm: Arm) -> float:
        """Return an arm's tokens per cost."""
        return self._tokens[arm] / self._cost[arm] if arm else PLAIN_RATE

    def next(self, most: Arm) -> Arm:
        """Return the arm of the next step, up to `most`."""
        best = max(Arm.PLAIN, *range(1, most + 1), key=self.rate)
        if best == most or not (self._trial or self._affords(0.0)):
            return Arm(best)
        self._trial = self._trial - 1 if self._trial else TRIAL_STEPS - 1
        return Arm(best + 1)

    def pays(self, price: float, tokens: int) -> bool:
        """Return whether the draft model is worth `price`, the cost of reading the prompt, if
        `tokens` tokens are still to come; or whether that is affordable as a trial."""
        saved = 1.0 / max(1.0, self.rate(Arm.TEXT)) - 1.0 / self.rate(Arm.DRAFT)
        return saved * tokens >= price or (saved < 0 and self._affords(price))

    def _affords(self, price: float) -> bool:
        return self._lost + price < TRIAL_SHARE * self._spent

    def observe(self, arm: Arm, step: tuple[float, float], text: tuple[float, float]) -> None:
        """Count the tokens and cost of a `step`, and those that the `text` alone would have had in
        this step or an earlier one (0 tokens: not known yet)."""
        self.spend(arm, *step)
        self._count(arm, *step)
        if arm == Arm.DRAFT and text[0]:
            self._count(Arm.TEXT, *text)

    def _count(self, arm: Arm, tokens: float, cost: float) -> None:
        self._tokens[arm] = DECAY * self._tokens[arm] + tokens
        self._cost[arm] = DECAY * self._cost[arm] + cost

    def spend(self, arm: Arm, tokens: float, cost: float) -> None:
        """Count a step's cost, and what it lost if another arm is faster."""
        self._spent += cost
        fastest = max(map(self.rate, Arm))
        if self.rate(arm) < fastest:
            self._lost += max(0.0, cost - tokens / fastest)
