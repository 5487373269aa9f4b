"""When speculation pays: break-even acceptance, an assumed agreement, and why a decoder is slow.

A step costs some greedy steps' time and gives some tokens; the speedup is their ratio. For a chain
of gamma tokens that each agree with probability alpha, independently (Leviathan et al. 2023,
arXiv 2211.17192, eq. 1), a step gives (1 - alpha^(gamma + 1)) / (1 - alpha) tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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


def expected_speedup(
    agreement: float,
    gamma: int,
    *,
    draft: float,
    host: float = 0.0,
    tokens_per_draft_call: float = 1.0,
    free: float = 0.0,
) -> float:
    """Return the expected speedup over greedy of steps with `gamma` draft tokens.

    Times are in target calls: `draft` of a draft call, `host` outside both models.
    `tokens_per_draft_call` is above 1 where the draft model drafts phrases; `free` tokens are
    gained where the whole draft was right.
    """
    cost = max(1.0, gamma / tokens_per_draft_call) * draft + 1.0 + host
    return (chain_tokens(agreement, gamma) + free * agreement**gamma) / cost


def agreement_for(
    gain: Callable[[float], float], value: float, *, highest: float = 1.0, xtol: float = 2e-12
) -> float | None:
    """Return the agreement at which an increasing `gain(agreement)` reaches a value.

    0 where it does so at once, None where it does not up to `highest`.
    """
    if gain(0.0) >= value:
        return 0.0
    if gain(highest) < value:
        return None
    return float(brentq(lambda agreement: gain(agreement) - value, 0.0, highest, xtol=xtol))


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
    token = partial(expected_speedup, draft=draft, host=costs.host_ms.get("", 0.0) / plain_ms)
    phrase = partial(token, tokens_per_draft_call=tokens_per_draft_call, free=free)
    rows = []
    for agreement in agreements:
        gamma, gamma_by_phrases = (
            max(gammas, key=partial(ideal, agreement)) for ideal in (token, phrase)
        )
        rows.append(
            {
                "agreement": float(agreement),
                "gamma": gamma,
                "speculative": token(agreement, gamma),
                "breaks even at": agreement_for(partial(token, gamma=gamma), 1.0),
                "gamma by phrases": gamma_by_phrases,
                "ouroboros": phrase(agreement, gamma_by_phrases),
                "at most": 1.0 / (1.0 - agreement),
            }
        )

    def ours(agreement: float) -> float:
        return max(phrase(agreement, gamma) for gamma in gammas)

    needs = agreement_for(ours, published, highest=HIGHEST, xtol=1e-4)
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
    parts = ("draft_s", "verify_s", "host_s", "new", "scored")
    means = [float(np.mean([getattr(step, part) for step in ours])) for part in parts]
    (draft, verify, host), (tokens, nodes) = [mean / unit for mean in means[:3]], means[3:]
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
    spent = [f"a draft of {drafted:.1f} tokens {draft:.2f}"] if draft else []
    spent += [f"a target call of {nodes:.1f} nodes {verify:.2f}", f"Python {host:.2f}"]
    gain = partial(chain_tokens, gamma=drafted)
    needed, reached = (agreement_for(gain, value) for value in (cost, min(tokens, drafted + 1.0)))
    if not drafted:
        pays = "nothing was drafted"
    elif needed is None:
        pays = f"a draft of {drafted:.1f} tokens cannot give {cost:.2f}"
    else:
        pays = f"it breaks even at an acceptance of {needed:.2f} per token, here {reached or 0:.2f}"
    share, where = max((draft, "drafting"), (verify, "in the target"), (host, "in Python"))
    return (
        f"{line}a step costs {cost:.2f} greedy steps ({', '.join(spent)}) and gives {tokens:.2f} "
        f"tokens; {pays}; {100 * share / cost:.0f} % of the time is {where}"
    )


def _seconds(step: StepRecord) -> float:
    return step.draft_s + step.verify_s + step.host_s
