"""When speculation pays: break-even acceptance, and why a decoder is slow.

A step costs some greedy steps' time and gives some tokens; the speedup is their ratio. For a chain
of gamma tokens that each agree with probability alpha, independently (Leviathan et al. 2023,
arXiv 2211.17192, eq. 1), a step gives (1 - alpha^(gamma + 1)) / (1 - alpha) tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.optimize import brentq

from ouroboros.bench.metrics.sample import Sample
from ouroboros.trace import StepRecord


def chain_tokens(agreement: float, gamma: float) -> float:
    """Return the expected tokens of a step with a chain of `gamma` draft tokens.

    >>> chain_tokens(0.5, 2), chain_tokens(1.0, 2)
    (1.75, 3.0)
    """
    if agreement >= 1.0:
        return gamma + 1.0
    return (1.0 - agreement ** (gamma + 1)) / (1.0 - agreement)


def agreement_for(gain: Callable[[float], float], value: float) -> float | None:
    """Return the agreement at which an increasing `gain(agreement)` reaches a value, 0 where it
    does at once, None where it never does."""
    if gain(0.0) >= value:
        return 0.0
    if gain(1.0) < value:
        return None
    return float(brentq(lambda agreement: gain(agreement) - value, 0.0, 1.0))


def break_even(plain: Sequence[Sample], samples: Sequence[Sample]) -> tuple[float | None, float]:
    """Return the acceptance per draft token at which a decoder is as fast as greedy (None: a draft
    of its length never is), and the acceptance that it has; None and 0 where nothing is drafted.

    The samples have seconds. Tokens are taken as accepted independently, along one chain.
    """
    base, ours = (_later_steps(of) for of in (plain, samples))
    drafted = [step.drafted for step in ours if step.drafted]
    if not base or not drafted:
        return None, 0.0
    gain = partial(chain_tokens, gamma=float(np.mean(drafted)))
    cost = np.mean([*map(_seconds, ours)]) / np.mean([*map(_seconds, base)])
    tokens = float(np.mean([step.new for step in ours]))
    return agreement_for(gain, float(cost)), agreement_for(gain, min(tokens, gain(1.0))) or 0.0


def why_slower(plain: Sequence[Sample], samples: Sequence[Sample]) -> str | None:
    """Return, in one line, what a step of a decoder slower than greedy costs and gives.

    The samples have seconds, measured or predicted. Means are over each sample's steps after the
    first, which holds the prefill, in seconds of a greedy step. None where there is no such step.
    """
    base, ours = (_later_steps(of) for of in (plain, samples))
    if not base or not ours:
        return None
    unit = float(np.mean([*map(_seconds, base)]))
    parts = ("draft_s", "verify_s", "host_s", "new", "scored")
    means = [float(np.mean([getattr(step, part) for step in ours])) for part in parts]
    (draft, verify, host), (tokens, nodes) = [mean / unit for mean in means[:3]], means[3:]
    cost = draft + verify + host
    if tokens > cost:
        first, plain_first = (
            float(np.mean([_seconds(one.steps[0]) for one in of if one.steps]))
            for of in (samples, plain)
        )
        return (
            f"only its first step is, {first / plain_first:.1f} times greedy's, with the "
            f"draft's prefill; later ones give {tokens:.2f} tokens for the time of {cost:.2f}: the "
            "completions are too short"
        )
    drafted = float(np.mean([step.drafted for step in ours if step.drafted] or [0]))
    needed, reached = break_even(plain, samples)
    spent = [f"a draft of {drafted:.1f} tokens {draft:.2f}"] if draft else []
    spent += [f"a target call of {nodes:.1f} nodes {verify:.2f}", f"Python {host:.2f}"]
    if not drafted:
        pays = "nothing was drafted"
    elif needed is None:
        pays = f"a draft of {drafted:.1f} tokens cannot give {cost:.2f}"
    else:
        pays = f"it breaks even at an acceptance of {needed:.2f} per token, here {reached:.2f}"
    share, where = max((draft, "drafting"), (verify, "in the target"), (host, "in Python"))
    return (
        f"a step costs {cost:.2f} greedy steps ({', '.join(spent)}) and gives {tokens:.2f} "
        f"tokens; {pays}; {100 * share / cost:.0f} % of the time is {where}"
    )


def _later_steps(samples: Sequence[Sample]) -> list[StepRecord]:
    return [step for one in samples for step in one.steps[1:] if step.scored]


def _seconds(step: StepRecord) -> float:
    return step.draft_s + step.verify_s + step.host_s
