"""Fit the weights of Ouroboros' estimators to a pair of models.

    python scripts/fit_weights.py weights.json --prompts mine.jsonl \
        --overrides model=hf model.target=ID model.draft=ID
    ouroboros bench decoder.ouroboros.weights=weights.json ...

This takes some minutes for ten prompts; the shipped weights, fitted on 90, took half an hour. Never
fit on a benchmark's prompts.

The drafter decodes the prompts as usual. The target's next token is known at every accepted node,
so each candidate for it, in the tree or not, is one observation. Every fifth prompt is held out of
the fit; the quality in `Weights.about` is measured on held-out prompts only.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from ouroboros.conf import FOLDER
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import entropy

from ouroboros.bench.run.pair import load_pair
from ouroboros.bench.run.prompts import PromptBuilder
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.cli.common import composed
from ouroboros.core.select import Sampler, TokenSelector, argmax
from ouroboros.costs import Costs, Surface
from ouroboros.decode import decode
from ouroboros.drafters.draft_tree.candidates import MODELS, Weights, list_options
from ouroboros.drafters.draft_tree.phrase_index import fill_path
from ouroboros.drafters.draft_tree.state import DRAFT_FEATURES, PHRASE_FEATURES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.engine.model import CachedModel
from ouroboros.models.vocab import eos_ids

CHEAP_DRAFT = Costs(Surface.constant(1.0), Surface.constant(0.05))
"""Draft calls cost almost nothing, so the draft model scores almost every accepted node."""
DEVELOPMENT = str(FOLDER / "task" / "development.jsonl")
TEMPERATURES, MAX_NEW = (0.0, 0.8), 128
HELD_OUT = 5
ROUNDS = 2
PENALTY = 1e-4  # L2 penalty added to the log loss, on the weights of standardised features


class RecordingGrower(TreeGrower):
    """A tree grower that records observations as rows: features, then 1 if the candidate was the
    target's token, else 0. `phrase_rows` has phrase features, `draft_rows` also draft features."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.phrase_rows: list[list[float]] = []
        self.draft_rows: list[list[float]] = []

    def rows_of(self, model: str) -> np.ndarray:
        """Return the rows for a model of `Weights`, by its name."""
        rows = np.array(self.draft_rows if model.endswith("draft") else self.phrase_rows)
        ranked = rows[:, PHRASE_FEATURES.index("log2(1 + match of the rankings)")] > 0
        return rows[ranked == model.startswith("ranked")]

    def learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        for place in path:
            node = int(self.state.order[place])
            self._record(self.phrase_rows, len(PHRASE_FEATURES), node, 0, chosen[place])
            if ranks := int(self.state.ranks[node]):
                self._record(self.draft_rows, len(DRAFT_FEATURES), node, ranks, chosen[place])
        super().learn(chosen, path)

    def _record(self, rows: list, width: int, node: int, ranks: int, truth: int) -> None:
        s = self.state
        fill_path(s, node)
        list_options(s, self.memory, node, ranks)
        for token, features in zip(s.option_token[: s.options], s.features, strict=False):
            rows.append([*features[:width].tolist(), float(token == truth)])


def fit(rows: np.ndarray, before: Sequence[float]) -> np.ndarray:
    """Return the weights of a logistic regression with a small L2 penalty.

    A row has the features (feature 0 is constant) and the outcome, 0 or 1. A feature that is 0 in
    all rows keeps its weight from `before`.
    """
    features, outcomes = rows[:, :-1], rows[:, -1]
    penalty = PENALTY * features.var(0)  # as if the features were standardised

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        odds = features @ weights
        value = np.logaddexp(0, odds).mean() - (outcomes * odds).mean()
        slope = features.T @ (expit(odds) - outcomes) / len(outcomes)
        return float(value + 0.5 * penalty @ weights**2), slope + penalty * weights

    weights = minimize(loss, np.zeros(features.shape[1]), jac=True, method="L-BFGS-B").x
    return np.where(features.any(0), weights, before)


def quality(rows: np.ndarray, weights: np.ndarray) -> dict:
    """Return the number of rows, "observations", and the log losses (natural logarithms) of the
    weights' estimates and of a constant estimate, the mean outcome."""
    odds, outcomes = rows[:, :-1] @ weights, rows[:, -1]
    loss = (np.logaddexp(0, odds) - outcomes * odds).mean()
    constant = entropy([outcomes.mean(), 1 - outcomes.mean()])
    losses = {"log_loss": loss, "log_loss_of_the_mean": constant}
    return {"observations": len(rows), **{k: round(float(v), 5) for k, v in losses.items()}}


def with_weight_noise(draft: CachedModel, noise: float) -> CachedModel:
    """Return a worse draft model: a copy whose matrices have Gaussian noise of `noise` times their
    standard deviation, with a fixed seed."""
    if not noise:
        return draft
    model = copy.deepcopy(draft.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.dim() > 1):
            drawn = torch.randn(weight.shape, generator=generator).to(weight)
            weight.add_(noise * weight.std() * drawn)
    return CachedModel(model, tokenizer=draft.tokenizer, max_len=draft.max_len)


def calibrate(
    target: CachedModel,
    draft: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    noise: Sequence[float] = (0.0,),
    eos: Sequence[int] = (),
    pair: str = "",
) -> Weights:
    """Decode development prompts (token ids) with the drafter, and return weights fitted on these
    runs; `pair` describes the models.

    The first round decodes with the shipped weights, each later round with the weights of the
    previous round. Each noise level in `noise` adds runs with a draft model made worse by
    `with_weight_noise`; the shipped weights were fitted at several levels, to suit good and bad
    drafts. Exits for fewer than HELD_OUT prompts.
    """
    if len(prompts) < HELD_OUT:
        raise SystemExit(f"{len(prompts)} prompts are too few: give {HELD_OUT} or more")
    weights, drafts = Weights.load(), [with_weight_noise(draft, level) for level in noise]
    about = {"pair": pair, "prompts": len(prompts), "noise": list(noise)}
    about |= {"temperatures": list(TEMPERATURES), "max_new": MAX_NEW}
    for _ in range(ROUNDS):
        fitted, held_out = RecordingGrower(weights), RecordingGrower(weights)
        for number, prompt in enumerate(prompts):
            for model, temperature, ranked in product(drafts, TEMPERATURES, (False, True)):
                options: dict = {"costs": CHEAP_DRAFT, "weights": weights, "adapt": False}
                drafter = Ouroboros(model, runners_up=ranked, **options)
                drafter.grower = held_out if number % HELD_OUT == HELD_OUT - 1 else fitted
                drawn: dict = {"temperature": temperature, "seed": number}
                choose: TokenSelector = Sampler(**drawn) if temperature else argmax
                decode(target, drafter, prompt, max_new=MAX_NEW, eos=eos, choose=choose)
        models = {name: getattr(weights, name) for name in MODELS}
        for name, before in models.items():
            rows, unseen = fitted.rows_of(name), held_out.rows_of(name)
            if len(rows) and len(unseen):
                found = fit(rows, before)
                models[name], about[name] = tuple(map(float, found)), quality(unseen, found)
        weights = Weights(**models, about=about)
    return weights


def main(words: Sequence[str] | None = None) -> None:
    """Fit the weights and print how well they predict."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("out", type=Path, help="the file to write")
    add("--prompts", default=DEVELOPMENT, help="JSONL (default: development text)")
    noise = "noise levels added to the draft's weights (shipped: 0 0.12 0.2)"
    add("--noise", type=float, nargs="+", default=[0.0], help=noise)
    add("--overrides", nargs="*", default=[], help="options of conf/bench.yaml")
    options = parser.parse_args(words)
    config = composed(["decoder=[ouroboros]", *options.overrides])
    torch.set_num_threads(config.threads or torch.get_num_threads())
    target, draft = load_pair(config.model, with_draft=True).models
    template = "chat" if target.tokenizer.chat_template else "plain"
    _, examples = TaskSpec("prompts", {"path": options.prompts, "template": template}).load()
    prompts = list(map(PromptBuilder(target.tokenizer).ids, examples))
    pair, eos = f"{config.model.name}, {config.model.dtype}", sorted(eos_ids(target))
    weights = calibrate(target, draft, prompts, noise=options.noise, eos=eos, pair=pair)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    weights.save(options.out)
    for model in MODELS:
        print(model, weights.about.get(model, "no observations: the weights stay"))


if __name__ == "__main__":
    main()
