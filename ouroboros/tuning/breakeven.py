"""Why a decoder is slower than greedy, and from which acceptance on it would not be.

A step costs some greedy steps' time and gives some tokens; the speedup is their ratio. For a chain
of gamma tokens that each agree with probability alpha, independently (Leviathan et al. 2023,
arXiv 2211.17192, eq. 1), a step gives (1 - alpha^(gamma + 1)) / (1 - alpha) tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import Sample
from ouroboros.trace import StepRecord

NEVER = None
"""A break-even acceptance that does not exist: even a draft that is always right is too slow."""


@dataclass(frozen=True)
class Ideal:
    """Drafting in calls of a pair alone, all times in those of a greedy step.

    `draft`: one draft call; `verify`: a target call that scores a whole draft; `host`: a step's
    time outside of both models, beyond greedy's. `tokens_per_draft_call` is above 1 where the draft
    model drafts phrases; `free` tokens follow for nothing where the whole draft was right.
    """

    gamma: int
    draft: float
    verify: float = 1.0
    host: float = 0.0
    tokens_per_draft_call: float = 1.0
    free: float = 0.0

    @property
    def step(self) -> float:
        """What a step costs: one draft call at least."""
        calls = max(1.0, self.gamma / self.tokens_per_draft_call)
        return calls * self.draft + self.verify + self.host

    def tokens(self, agreement: float) -> float:
        """Return the expected tokens of a step."""
        return chain_tokens(agreement, self.gamma) + self.free * agreement**self.gamma

    def speedup(self, agreement: float) -> float:
        """Return the expected speedup over greedy."""
        return self.tokens(agreement) / self.step


def chain_tokens(agreement: float, gamma: float) -> float:
    """Return the expected tokens of a step with a chain of `gamma` drafted tokens.

    >>> chain_tokens(0.5, 2)
    1.75
    >>> chain_tokens(1.0, 2)
    3.0
    """
    if agreement >= 1.0:
        return gamma + 1.0
    return (1.0 - agreement ** (gamma + 1)) / (1.0 - agreement)


def agreement_for(tokens: float, gamma: float) -> float | None:
    """Return the agreement per token at which a chain gives `tokens` a step; None if it cannot.

    It inverts `chain_tokens`: `tokens` at most 1 need none.
    """
    if tokens <= 1.0:
        return 0.0
    if tokens > gamma + 1.0:
        return NEVER
    return float(brentq(lambda a: chain_tokens(a, gamma) - tokens, 0.0, 1.0))


def break_even(ideal: Ideal) -> float | None:
    """Return the agreement at which the speedup is 1; None if no agreement reaches it."""
    if ideal.speedup(0.0) >= 1.0:
        return 0.0
    if ideal.speedup(1.0) < 1.0:
        return NEVER
    return float(brentq(lambda a: ideal.speedup(a) - 1.0, 0.0, 1.0))


def best_gamma(ideal: Ideal, agreement: float, gammas: Sequence[int]) -> Ideal:
    """Return the ideal with the gamma of the highest speedup, the smallest of equals.

    Its `verify` stays: it is that of a call of any of these sizes.
    """
    every = (replace(ideal, gamma=gamma) for gamma in gammas)
    return max(every, key=lambda one: one.speedup(agreement))


@dataclass(frozen=True)
class Means:
    """Means over a run's steps after each first one; seconds of a greedy step are the unit.

    `agreeing` is the agreement per token at which a chain as deep as `drafted` gives `tokens`.
    """

    drafted: float
    nodes: float
    tokens: float
    draft: float
    verify: float
    host: float

    @classmethod
    def of(cls, plain: Sequence[Sample], samples: Sequence[Sample]) -> Means | None:
        """Return the means of timed samples (measured or predicted); None without later steps."""
        base, ours = later_steps(plain), later_steps(samples)
        if not base or not ours:
            return None
        unit = sum(map(_seconds, base)) / len(base)
        drafted = [step.drafted for step in ours if step.drafted] or [0]
        parts = [[s.draft_s for s in ours], [s.verify_s for s in ours], [s.host_s for s in ours]]
        return cls(
            float(np.mean(drafted)),
            float(np.mean([step.scored for step in ours])),
            float(np.mean([step.new for step in ours])),
            *(float(np.mean(part)) / unit for part in parts),
        )

    @property
    def step(self) -> float:
        """What a step costs."""
        return self.draft + self.verify + self.host

    @property
    def agreeing(self) -> float:
        """The agreement that would give as many tokens."""
        return agreement_for(min(self.tokens, self.drafted + 1.0), self.drafted) or 0.0


def later_steps(samples: Sequence[Sample]) -> list[StepRecord]:
    """Return all steps but each sample's first, which holds the prefill, and but other engines."""
    return [step for sample in samples for step in sample.steps[1:] if step.scored]


def why_slower(name: str, plain: Sequence[Sample], samples: Sequence[Sample]) -> str | None:
    """Return, in one line, why a decoder is slower than greedy; None where it is not.

    The samples are timed, whether they were measured or predicted.
    """
    ratio, means = speedup(plain, samples), Means.of(plain, samples)
    if ratio is None or means is None or ratio.value >= 1.0:
        return None
    line = f"{name} is slower than greedy ({ratio.value:.2f}x): "
    if means.tokens > means.step:
        first = _first_s(samples) / _first_s(plain)
        return (
            f"{line}only its first step is, {first:.1f} times greedy's, with the draft's prefill; "
            f"later ones give {means.tokens:.2f} tokens for the time of {means.step:.2f}: the "
            "completions are too short"
        )
    parts = [f"a target call of {means.nodes:.1f} nodes {means.verify:.2f}"]
    if means.draft:
        parts.insert(0, f"a draft of {means.drafted:.1f} tokens {means.draft:.2f}")
    parts.append(f"Python {means.host:.2f}")
    shares = {"drafting": means.draft, "in the target": means.verify, "in Python": means.host}
    most = max(shares, key=lambda key: shares[key])
    return (
        f"{line}a step costs {means.step:.2f} greedy steps ({', '.join(parts)}) and gives "
        f"{means.tokens:.2f} tokens; {_needed(means)}; "
        f"{100 * shares[most] / means.step:.0f} % of the time is {most}"
    )


def _needed(means: Means) -> str:
    if not means.drafted:
        return "nothing was drafted"
    needed = agreement_for(means.step, means.drafted)
    if needed is NEVER:
        return f"a draft of {means.drafted:.1f} tokens cannot give {means.step:.2f}"
    return f"it breaks even at an acceptance of {needed:.2f} per token, here {means.agreeing:.2f}"


def _seconds(step: StepRecord) -> float:
    return step.draft_s + step.verify_s + step.host_s


def _first_s(samples: Sequence[Sample]) -> float:
    return float(np.mean([_seconds(sample.steps[0]) for sample in samples if sample.steps]))
