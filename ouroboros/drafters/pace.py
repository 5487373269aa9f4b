"""How far to draft: by the draft's own doubt, or on while a call is worth more than it costs.

With tokens as the gain and target calls as the cost, the best rule drafts on exactly where the next
call gains more tokens per cost than decoding does on average (renewal reward; Dinkelbach 1967 for
ratios). What a call gains is estimated from the steps before, the newest counting most. Invariant:
decisions depend on counts and on the draft's probabilities alone, never on a clock, so a run can be
repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Protocol

from ouroboros.drafters.drafting import Draft
from ouroboros.drafters.pool import CONTEXT

FORGET = 0.9  # what an observation counts for after one more
PRIOR = 1.5  # what a first guess counts for, in observations
PROBE_FIRST, PROBE_LAST = 4, 32  # steps without a draft before one is tried again


class Pace(Protocol):
    """Decides before each call of a draft model whether to make it.

    An `agreement` is how many tokens before a node a phrase that hangs below it shares with the
    text (-1: no phrase hangs there).
    """

    def reset(self) -> None:
        """Begin a prompt."""
        ...

    def starts(self, agreement: int) -> bool:
        """Return whether to draft at all, below a root with phrases of this agreement."""
        ...

    def goes_on(self, draft: Draft) -> bool:
        """Return whether to make another call after what was drafted so far."""
        ...

    def root_first(self, draft: Draft) -> bool:
        """Return whether phrases at the root are likelier to be accepted than at the draft's
        end."""
        ...

    def learn(
        self, draft: Draft, said: Sequence[int], *, kept: int, phrases: Iterable[Sequence[int]] = ()
    ) -> None:
        """Take in a step: `said` are its new tokens, the target's own last, `kept` of them the
        draft's itself; `phrases` are those of the root, hung or not."""
        ...


class Doubt:
    """Drafts on until the draft's own probability of the whole draft falls below `stop_below`."""

    def __init__(self, stop_below: float) -> None:
        self.stop_below = stop_below

    def reset(self) -> None:
        """Nothing is kept."""

    def starts(self, agreement: int) -> bool:
        return True

    def goes_on(self, draft: Draft) -> bool:
        return prod(draft.shares) >= self.stop_below

    def root_first(self, draft: Draft) -> bool:
        return False

    def learn(
        self, draft: Draft, said: Sequence[int], *, kept: int, phrases: Iterable[Sequence[int]] = ()
    ) -> None:
        """Nothing to learn."""


@dataclass
class Mean:
    """A mean that forgets; it begins at `guess`."""

    guess: float
    weight: float = PRIOR

    def __post_init__(self) -> None:
        self.total = self.guess * self.weight

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take in one observation, or a ratio's numerator with its denominator as the weight."""
        self.total = FORGET * self.total + value
        self.weight = FORGET * self.weight + weight

    @property
    def value(self) -> float:
        return self.total / self.weight


def _means(*guesses: float) -> list[Mean]:
    return [Mean(guess) for guess in guesses]


@dataclass
class Estimates:
    """What the steps so far say.

    `rate`: new tokens per cost. `start`: tokens accepted beyond what phrases at the root alone
    would have given, without and with a phrase there that shares some context. `go`: tokens
    accepted after a point where drafting went on. `calls`: draft calls from a draft's start, and
    from such a point. `stop`: tokens accepted where drafting ended, by 1 + agreement. `trust`:
    draft tokens accepted over those that the draft itself expected.
    """

    rate: Mean = field(default_factory=lambda: Mean(2.0))
    start: list[Mean] = field(default_factory=lambda: _means(1.5, 1.5))
    go: Mean = field(default_factory=lambda: Mean(2.0))
    calls: list[Mean] = field(default_factory=lambda: _means(2.0, 1.5))
    stop: list[Mean] = field(
        default_factory=lambda: _means(0.0, *(0.3 + 0.3 * a for a in range(CONTEXT + 1)))
    )
    trust: Mean = field(default_factory=lambda: Mean(1.0))

    def reached(self, draft: Draft) -> float:
        """The probability that a draft is accepted to its end."""
        trust = self.trust.value
        return prod(min(1.0, trust * share) for share in draft.shares)


class Worth:
    """Drafts on while a call is worth its cost, `draft_cost` target calls, by the steps so far, and
    while the draft itself is sure enough (`Doubt`).

    Where no draft is worth it one is tried now and then, ever more rarely while that fails.
    """

    def __init__(self, draft_cost: float, stop_below: float = 0.0) -> None:
        if draft_cost <= 0:
            raise ValueError(f"draft_cost {draft_cost} must be above 0 (in target calls)")
        self.draft_cost = draft_cost
        self.doubt = Doubt(stop_below)
        self.reset()

    def reset(self) -> None:
        """Forget the prompt before: no prompt's counts depend on another's."""
        self.known = Estimates()
        self._idle, self._wait = 0, PROBE_FIRST

    def starts(self, agreement: int) -> bool:
        if self._pays(self.known.start[agreement > 0].value, self.known.calls[0]):
            self._wait = PROBE_FIRST
            return True
        self._idle += 1
        if self._idle < self._wait:
            return False
        self._wait = min(2 * self._wait, PROBE_LAST)
        return True

    def goes_on(self, draft: Draft) -> bool:
        known = self.known
        if not self.doubt.goes_on(draft):
            return False
        gain = known.reached(draft) * (known.go.value - known.stop[1 + draft.end].value)
        return self._pays(gain, known.calls[1])

    def root_first(self, draft: Draft) -> bool:
        root, end = self.known.stop[1 + draft.root], self.known.stop[1 + draft.end]
        return self.known.reached(draft) * end.value < root.value

    def learn(
        self, draft: Draft, said: Sequence[int], *, kept: int, phrases: Iterable[Sequence[int]] = ()
    ) -> None:
        known, calls, accepted = self.known, len(draft.stages), len(said) - 1
        known.rate.add(len(said), 1 + self.draft_cost * calls)
        if draft.recalled:
            return
        if not calls:
            known.stop[1 + draft.root].add(accepted)
            return
        self._idle = 0
        at_root = max((_shared(phrase, said) for phrase in phrases), default=0)
        known.start[draft.root > 0].add(accepted - at_root)
        known.stop[1 + draft.root].add(at_root)
        if kept == len(draft.tokens):
            known.stop[1 + draft.end].add(accepted - kept)
        for index, begun in enumerate(draft.stages):
            if begun <= kept:
                known.calls[index > 0].add(calls - index)
                if index:
                    known.go.add(accepted - begun)
        for place, share in enumerate(draft.shares[: kept + 1]):
            known.trust.add(place < kept, share)

    def _pays(self, gain: float, calls: Mean) -> bool:
        """Whether so many tokens are more than so many draft calls bring at the usual rate."""
        return gain > self.known.rate.value * self.draft_cost * calls.value


def _shared(phrase: Sequence[int], said: Sequence[int]) -> int:
    """Return how many tokens two sequences share at their beginnings."""
    for count, (a, b) in enumerate(zip(phrase, said, strict=False)):
        if a != b:
            return count
    return min(len(phrase), len(said))


def pace(*, stop_below: float, draft_cost: float) -> Pace:
    """Return the pace that these options ask for: by worth where `draft_cost` is above 0."""
    return Worth(draft_cost, stop_below) if draft_cost else Doubt(stop_below)
