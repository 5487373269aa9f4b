"""What an assumed agreement would give: speedups from costs alone, with no run of any model."""

from __future__ import annotations

from dataclasses import replace

from scipy.optimize import brentq
from tabulate import tabulate

from ouroboros.costs import Costs
from ouroboros.tuning.breakeven import Ideal, best_gamma, break_even

CONTEXT = 512  # tokens, of the calls whose cost is taken
HIGHEST = 0.99  # agreement that is looked for


def suppose(config: dict, costs: Costs | None) -> dict:
    """Print and return the best speedups of speculation and of Ouroboros for each agreement, and
    the agreement that the published speedup presumes (None: no agreement gives it).

    Raises `ValueError` without costs of a pair.
    """
    if costs is None or costs.draft is None:
        raise ValueError(
            "an assumed agreement needs costs of a pair: give costs=<file>, or "
            "machine.bandwidth_gb_s=4300 with a model= or machine.shapes= that names both"
        )
    agreements, options = config["agreement"], config["ideal"]
    agreements = agreements if isinstance(agreements, list) else [agreements]
    if not all(isinstance(a, (int, float)) and 0 <= a < 1 for a in agreements):
        raise ValueError(f"agreement={agreements}: give shares from 0 to below 1")
    plain_ms = costs.target.call_ms(1, CONTEXT)
    draft = costs.draft.call_ms(1, CONTEXT) / plain_ms
    token = Ideal(gamma=1, draft=draft, host=costs.host_ms.get("", 0.0) / plain_ms)
    own = {name: options[name] for name in ("tokens_per_draft_call", "free")}
    phrase = replace(token, **own)
    rows = [row(agreement, token, phrase, options["gammas"]) for agreement in agreements]
    needed = agreement_of(options["published"], phrase, options["gammas"])
    print(f"a target call: {plain_ms:.1f} ms, {1e3 / plain_ms:.0f} tokens/s")
    print(f"a draft call: {draft:.3f} of a target call")
    print(tabulate(rows, headers="keys", floatfmt=".2f", missingval="never"))
    said = "no agreement below it" if needed is None else f"an agreement of {needed:.2f}"
    print(f"{options['published']}x, as published, needs {said}\n")
    return {"published": options["published"], "needs": needed, "draft": draft, "rows": rows}


def row(agreement: float, token: Ideal, phrase: Ideal, gammas: list[int]) -> dict:
    """One agreement: best gamma and speedup of drafts token by token and by phrases, and the limit
    of any chain, whatever it costs."""
    plain, ours = (best_gamma(ideal, agreement, gammas) for ideal in (token, phrase))
    return {
        "agreement": float(agreement),
        "gamma": plain.gamma,
        "speculative": plain.speedup(agreement),
        "breaks even at": break_even(plain),
        "gamma by phrases": ours.gamma,
        "ouroboros": ours.speedup(agreement),
        "at most": 1.0 / (1.0 - agreement),
    }


def agreement_of(speedup: float, ideal: Ideal, gammas: list[int]) -> float | None:
    """Return the agreement at which the best gamma gives a speedup; None if there is none."""

    def missing(agreement: float) -> float:
        return best_gamma(ideal, agreement, gammas).speedup(agreement) - speedup

    if missing(0.0) >= 0.0:
        return 0.0
    return None if missing(HIGHEST) < 0.0 else float(brentq(missing, 0.0, HIGHEST, xtol=1e-4))
