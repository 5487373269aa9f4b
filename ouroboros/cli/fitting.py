"""`ouroboros tune --fit FILE`: Ouroboros' estimates fitted to a pair on development text."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ouroboros.bench.report.plots import style
from ouroboros.bench.report.plots.acceptance import fitted_weights
from ouroboros.bench.run.loop import eos_ids
from ouroboros.bench.tasks.prompts import Prompts
from ouroboros.cli import CONF
from ouroboros.cli.build import build_pair
from ouroboros.cli.configs import composed
from ouroboros.drafters.calibration import calibrate


def fit(args: argparse.Namespace) -> int:
    """Fit, write the weights and a picture beside them, print how well they predict; return 0."""
    config = composed(["decoder=[ouroboros]", *args.overrides])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    paths = args.prompts or [str(Path(CONF, "task", "development.jsonl"))]
    loaded = {Path(path).stem: Prompts(path=path).load()[: args.limit] for path in paths}
    pair = build_pair(config)
    target, draft = pair.target, pair.draft
    if draft is None:
        raise ValueError("the estimates are fitted with a draft model: give model.draft=...")
    encoded = {
        name: [target.tokenizer(one.prompt).input_ids for one in examples]
        for name, examples in loaded.items()
    }
    weights = calibrate(
        target,
        draft,
        encoded,
        temperatures=args.temperatures,
        max_new=args.max_new,
        noise=args.noise,
        eos=sorted(eos_ids(target)),
        pair=f"{config['model']['name']}, {config['model']['dtype']}",
    )
    args.fit.parent.mkdir(parents=True, exist_ok=True)
    weights.save(args.fit)
    style.save(fitted_weights(weights.about), args.fit.with_suffix(".png"))
    for view, what in (("index", "by phrases alone"), ("draft", "with the draft's view")):
        found = weights.about[view]
        assert isinstance(found, dict)
        print(
            f"{what}: log loss {found['log_loss']:.3f} on {found['observations']} tokens held out"
            f" (always the mean: {found['log_loss_of_the_mean']:.3f})"
        )
    print(f"use it: ouroboros bench decoder.ouroboros.weights={args.fit}")
    return 0
