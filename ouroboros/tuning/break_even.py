"""When speculation pays: break-even acceptance, an assumed agreement, and why a decoder is slow.

A step costs some greedy steps' time and gives some tokens; the speedup is their ratio. For a chain
of gamma tokens that each agree with probability alpha, independently (Leviathan et al. 2023,
arXiv 2211.17192, eq. 1), a step gives (1 - alpha^(gamma + 1)) / (1 - alpha) tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import Sample
from ouroboros.costs import Costs
from ouroboros.trace import StepRecord

CONTEXT = 512  # tokens, of the calls whose costs are compared
HIGHEST = 0.99  # agreement up to which a published speedup is explained
GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20)


@dataclass(frozen=True)
class IdealDrafting:
    """Drafting in calls of a pair alone; all times are in those of a greedy step.

    `draft`: one draft call; `verify`: a target call that scores a whole draft; `host`: a step's
    time outside both models, beyond greedy's. `tokens_per_draft_call` is above 1 where the draft
    model drafts phrases; `free` tokens are gained where the whole draft was right.
    """

    gamma: int
    draft: float
    verify: float = 1.0
    host: float = 0.0
    tokens_per_draft_call: float = 1.0
    free: float = 0.0

    @property
    def step(self) -> float:
        """Cost of a step: max(1, gamma / tokens_per_draft_call) * draft + verify + host."""
        calls = max(1.0, self.gamma / self.tokens_per_draft_call)
        return calls * self.draft + self.verify + self.host

    def tokens(self, agreement: float) -> float:
        """Return the expected tokens of a step: chain_tokens + free * agreement^gamma."""
        return chain_tokens(agreement, self.gamma) + self.free * agreement**self.gamma

    def speedup(self, agreement: float) -> float:
        """Return the expected speedup over greedy: tokens / step."""
        return self.tokens(agreement) / self.step


def chain_tokens(agreement: float, gamma: float) -> float:
    """Return the expected tokens of a step with a chain of `gamma` draft tokens.

    >>> chain_tokens(0.5, 2)
    1.75
    >>> chain_tokens(1.0, 2)
    3.0
    """
    if agreement >= 1.0:
        return gamma + 1.0
    return (1.0 - agreement ** (gamma + 1)) / (1.0 - agreement)


def agreement_for(tokens: float, gamma: float) -> float | None:
    """Return the agreement at which a chain gives `tokens` a step (the inverse of `chain_tokens`);
    0 for at most 1 token, None for more than gamma + 1."""
    if tokens <= 1.0:
        return 0.0
    if tokens > gamma + 1.0:
        return None
    return float(brentq(lambda a: chain_tokens(a, gamma) - tokens, 0.0, 1.0))


def break_even(ideal: IdealDrafting) -> float | None:
    """Return the agreement at which the speedup is 1; None if no agreement reaches it."""
    if ideal.speedup(0.0) >= 1.0:
        return 0.0
    if ideal.speedup(1.0) < 1.0:
        return None
    return float(brentq(lambda a: ideal.speedup(a) - 1.0, 0.0, 1.0))


def best_gamma(ideal: IdealDrafting, agreement: float, gammas: Sequence[int]) -> IdealDrafting:
    """Return the ideal with the gamma of the highest speedup, the smallest of equals; `verify` is
    kept as that of a call of any of these sizes."""
    every = (replace(ideal, gamma=gamma) for gamma in gammas)
    return max(every, key=lambda one: one.speedup(agreement))


def suppose(
    costs: Costs | None,
    agreements: Sequence[float],
    *,
    tokens_per_draft_call: float = 2.5,
    free: float = 1.0,
    published: float = 3.9,
    gammas: Sequence[int] = GAMMAS,
) -> tuple[pd.DataFrame, dict]:
    """Return what assumed agreements would give, from costs alone, with no run of any model.

    The table has a row per agreement: best gamma and speedup of drafts token by token and by
    phrases (Ouroboros: `tokens_per_draft_call`, `free`), and the limit 1 / (1 - agreement) of any
    chain. The mapping has the agreement that a `published` speedup needs (None: no agreement gives
    it), milliseconds of a target call, and a draft call's share of it. Raises `ValueError` without
    costs of a pair, and for agreements outside 0 to below 1.
    """
    if costs is None or costs.draft is None:
        raise ValueError(
            "an assumed agreement needs costs of a pair: give costs=<file>, or "
            "machine.bandwidth_gb_s=4300 with a model= or machine.shapes= that names both"
        )
    if not all(isinstance(a, (int, float)) and 0 <= a < 1 for a in agreements):
        raise ValueError(f"agreement={agreements}: give shares from 0 to below 1")
    plain_ms = costs.target.call_ms(1, CONTEXT)
    draft = costs.draft.call_ms(1, CONTEXT) / plain_ms
    token = IdealDrafting(1, draft, host=costs.host_ms.get("", 0.0) / plain_ms)
    phrase = replace(token, tokens_per_draft_call=tokens_per_draft_call, free=free)
    rows = []
    for agreement in agreements:
        plain, ours = (best_gamma(ideal, agreement, gammas) for ideal in (token, phrase))
        rows.append(
            {
                "agreement": float(agreement),
                "gamma": plain.gamma,
                "speculative": plain.speedup(agreement),
                "breaks even at": break_even(plain),
                "gamma by phrases": ours.gamma,
                "ouroboros": ours.speedup(agreement),
                "at most": 1.0 / (1.0 - agreement),
            }
        )

    def missing(agreement: float) -> float:
        return best_gamma(phrase, agreement, gammas).speedup(agreement) - published

    needs: float | None = 0.0
    if missing(0.0) < 0.0:
        found = missing(HIGHEST) >= 0.0
        needs = float(brentq(missing, 0.0, HIGHEST, xtol=1e-4)) if found else None
    facts = {"published": published, "needs": needs, "target_ms": plain_ms, "draft": draft}
    return pd.DataFrame(rows), facts


def why_slower(name: str, plain: Sequence[Sample], samples: Sequence[Sample]) -> str | None:
    """Return, in one line, why a decoder is slower than greedy; None if it is not.

    The samples have seconds, measured or predicted. Means are over each sample's steps after the
    first, which holds the prefill, in seconds of a greedy step.
    """
    ratio = speedup(plain, samples)
    base, ours = ([s for one in of for s in one.steps[1:] if s.scored] for of in (plain, samples))
    if ratio is None or ratio.value >= 1.0 or not base or not ours:
        return None
    unit = sum(map(_seconds, base)) / len(base)
    draft, verify, host = (
        float(np.mean([getattr(step, part) for step in ours])) / unit
        for part in ("draft_s", "verify_s", "host_s")
    )
    tokens, nodes = (float(np.mean([getattr(s, part) for s in ours])) for part in ("new", "scored"))
    drafted = float(np.mean([step.drafted for step in ours if step.drafted] or [0]))
    cost = draft + verify + host
    line = f"{name} is slower than greedy ({ratio.value:.2f}x): "
    if tokens > cost:
        first, plain_first = (
            float(np.mean([_seconds(one.steps[0]) for one in of if one.steps]))
            for of in (samples, plain)
        )
        return (
            f"{line}only its first step is, {first / plain_first:.1f} times greedy's, with the "
            f"draft's prefill; later ones give {tokens:.2f} tokens for the time of {cost:.2f}: the "
            "completions are too short"
        )
    parts = [f"a draft of {drafted:.1f} tokens {draft:.2f}"] if draft else []
    parts += [f"a target call of {nodes:.1f} nodes {verify:.2f}", f"Python {host:.2f}"]
    needed = agreement_for(cost, drafted)
    reached = agreement_for(min(tokens, drafted + 1.0), drafted) or 0.0
    if not drafted:
        pays = "nothing was drafted"
    elif needed is None:
        pays = f"a draft of {drafted:.1f} tokens cannot give {cost:.2f}"
    else:
        pays = f"it breaks even at an acceptance of {needed:.2f} per token, here {reached:.2f}"
    share, where = max((draft, "drafting"), (verify, "in the target"), (host, "in Python"))
    return (
        f"{line}a step costs {cost:.2f} greedy steps ({', '.join(parts)}) and gives {tokens:.2f} "
        f"tokens; {pays}; {100 * share / cost:.0f} % of the time is {where}"
    )


def _seconds(step: StepRecord) -> float:
    return step.draft_s + step.verify_s + step.host_s
