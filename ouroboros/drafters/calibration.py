"""Fitting the two estimates: what was thought of a token against whether the target chose it.

The drafter decodes development texts as ever; at each node that was kept, and after it, the target
has spoken, so every token considered there, in the tree or not, is an observation. Invariant: every
fifth prompt is held out of the fit, and the figures in `Weights.about` are of those alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import xlogy

from ouroboros.costs import Costs, Surface
from ouroboros.decode import decode
from ouroboros.drafters.draft_tree.estimate import DRAFT, INDEX
from ouroboros.drafters.draft_tree.growth import Growth, Shape
from ouroboros.drafters.draft_tree.kids import consider
from ouroboros.drafters.draft_tree.state import real, whole
from ouroboros.drafters.draft_tree.weights import Weights
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.engine.model import CachedModel
from ouroboros.select import Sampler, TokenSelector, argmax

CURIOUS = Costs(Surface.constant(1.0), Surface.constant(0.05))
"""A draft call costs next to nothing: nearly every node that is kept was scored by the draft."""
HELD_OUT = 5
PENALTY = 1e-4  # of a squared weight of standardised features, in log loss
BINS = 10


@dataclass
class Observations:
    """Features, [n, features], and whether the token was the target's, [n]."""

    features: list[list[float]] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.features), np.array(self.outcomes)


class Observed(Growth):
    """A growth that notes what it thought of, and what the target then said."""

    def __init__(self, weights: Weights, shape: Shape | None = None) -> None:
        super().__init__(weights, shape or Shape())
        self.index, self.both = Observations(), Observations()
        self._rankings: dict[int, tuple] = {}

    def begin(self, tokens: Sequence[int], max_depth: int, draft_depth: int) -> int:
        self._rankings = {}
        return super().begin(tokens, max_depth, draft_depth)

    def scored(self, ids: np.ndarray, scores: np.ndarray, shares: np.ndarray) -> int:
        for row in range(int(self.state.asked)):
            ranking = whole(ids[row]), real(scores[row]), real(shares[row])
            self._rankings[int(self.state.ask[row])] = ranking
        return super().scored(ids, scores, shares)

    def learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        for place in path:
            node = int(self.state.order[place])
            self._note(self.index, len(INDEX), node, None, chosen[place])
            if node in self._rankings:
                self._note(self.both, len(DRAFT), node, self._rankings[node], chosen[place])
        super().learn(chosen, path)

    def _note(
        self,
        seen: Observations,
        width: int,
        node: int,
        ranking: tuple | None,
        truth: int,
    ) -> None:
        for token, features in consider(self.state, self.memory, node, ranking):
            seen.features.append(features[:width])
            seen.outcomes.append(float(token == truth))


def fit(features: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Return the weights of a logistic model with a small penalty; feature 0 is the constant."""
    mean, spread = features.mean(0), features.std(0)
    mean[0], spread[0] = 0.0, 1.0
    spread[spread < 1e-9] = 1.0
    scaled = (features - mean) / spread
    scaled[:, 0] = 1.0

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        odds = scaled @ weights
        value = np.logaddexp(0, odds).mean() - (outcomes * odds).mean()
        slope = scaled.T @ (_logistic(odds) - outcomes) / len(outcomes)
        penalty = np.concatenate([[0.0], weights[1:]]) * PENALTY
        return float(value + 0.5 * (penalty @ weights)), slope + penalty

    found = minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B").x
    weights = found / spread
    weights[0] = found[0] - (weights[1:] * mean[1:]).sum()
    return weights


def quality(features: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> dict:
    """Return log loss, that of the mean alone, and how often tokens thought so likely came."""
    odds = features @ weights
    thought, base = _logistic(odds), outcomes.mean()
    of_the_mean = -(xlogy(base, base) + xlogy(1 - base, 1 - base))
    edges = np.linspace(0, 1, BINS + 1)
    rows = []
    for low, high in pairwise(edges):
        among = (thought >= low) & (thought < high if high < 1 else thought <= high)
        if among.any():
            rows.append(
                {
                    "from": round(float(low), 2),
                    "thought": round(float(thought[among].mean()), 4),
                    "came": round(float(outcomes[among].mean()), 4),
                    "observations": int(among.sum()),
                }
            )
    return {
        "observations": len(outcomes),
        "log_loss": round(float((np.logaddexp(0, odds) - outcomes * odds).mean()), 5),
        "log_loss_of_the_mean": round(float(of_the_mean), 5),
        "reliability": rows,
    }


def disturbed(draft: CachedModel, noise: float) -> CachedModel:
    """Return a worse draft: a copy whose matrices have normal noise of that share of their standard
    deviation, always the same."""
    if not noise:
        return draft
    model = copy.deepcopy(draft.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.dim() > 1):
            drawn = torch.randn(weight.shape, generator=generator).to(weight)
            weight.add_(noise * weight.std() * drawn)
    return CachedModel(model, tokenizer=draft.tokenizer, max_len=draft.max_len)


def observe(
    target: CachedModel,
    drafts: Sequence[CachedModel],
    prompts: Sequence[Sequence[int]],
    weights: Weights,
    *,
    temperatures: Sequence[float],
    max_new: int,
    eos: Sequence[int] = (),
) -> tuple[Observed, Observed]:
    """Decode each prompt with each draft at each temperature; return what was seen in those to fit
    on, and in those held out."""
    seen = Observed(weights), Observed(weights)
    for number, prompt in enumerate(prompts):
        for draft, temperature in product(drafts, temperatures):
            drafter = Ouroboros(draft, costs=CURIOUS, weights=weights)
            drafter.growth = seen[number % HELD_OUT == HELD_OUT - 1]
            choose: TokenSelector = argmax
            if temperature > 0:
                choose = Sampler(temperature=temperature, seed=number)
            decode(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
    return seen


def calibrate(
    target: CachedModel,
    draft: CachedModel,
    texts: Mapping[str, Sequence[Sequence[int]]],
    *,
    temperatures: Sequence[float],
    max_new: int = 96,
    eos: Sequence[int] = (),
    rounds: int = 2,
    noise: Sequence[float] = (0.0,),
    pair: str = "",
) -> Weights:
    """Return weights fitted on the drafter's own runs over development texts.

    `texts` names each text and gives its prompts as token ids; `pair` says in words which models
    these are. Each round decodes with the weights of the one before, the first with the shipped
    ones. `noise` names the drafts to fit on, each `disturbed` so much: several give weights that
    hold for drafts of several qualities, as the shipped ones do. Raises `ValueError` for fewer than
    HELD_OUT prompts.
    """
    prompts = [prompt for own in texts.values() for prompt in own]
    if len(prompts) < HELD_OUT:
        raise ValueError(f"{len(prompts)} prompts are too few: give {HELD_OUT} or more")
    weights, drafts = Weights.load(), [disturbed(draft, one) for one in noise]
    about: dict[str, object] = {}
    for _ in range(rounds):
        seen, held = observe(
            target, drafts, prompts, weights, temperatures=temperatures, max_new=max_new, eos=eos
        )
        index, both = fit(*seen.index.arrays()), fit(*seen.both.arrays())
        about = {
            "pair": pair,
            "prompts": {name: len(own) for name, own in texts.items()},
            "temperatures": list(temperatures),
            "max_new": max_new,
            "noise": list(noise),
            "index": quality(*held.index.arrays(), index),
            "draft": quality(*held.both.arrays(), both),
        }
        weights = Weights(tuple(map(float, index)), tuple(map(float, both)), about)
    return weights


def _logistic(odds: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
