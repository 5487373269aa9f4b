"""How many seconds a stage takes at most, said before it is begun."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ouroboros.bench.campaign.estimate import PROCESS_S, Machine, Seconds
from ouroboros.cli.bench import settled
from ouroboros.cli.build import any_drafts
from ouroboros.cli.campaigning.fitted import TooLarge, fitted
from ouroboros.cli.configs import composed

LEFT_OPEN = 40  # prompts of a task without a limit
SMALL = {"target": "cpu-target", "draft": "cpu-draft"}  # stand for the reference pair itself
CONTEXTS = (200, 300, 400, 600)  # of prompts and what is decoded after them
TABLE_S, LAYOUT_S, ENGINES_S, TESTS_S, ADVICE_S = 3.0, 0.05, 20.0, 100.0, 200.0


def stage_seconds(options: Mapping, machine: Machine) -> float:
    """Return the estimate of one stage from its options in conf/campaign.yaml."""
    attention, profile = options.get("attention", {}), options.get("profile")
    calls = 1
    for size in attention.values():
        calls *= len(size)
    total = PROCESS_S + LAYOUT_S * calls * (calls > 1) + TABLE_S * len(options.get("kernels", ()))
    total += 2 * ENGINES_S * len(options.get("dtypes", ())) + TESTS_S * ("dtypes" in options)
    loaded: object = None
    for job in options["jobs"].values():
        try:
            config = fitted(
                settled(composed([*job, *options["overrides"]])),
                memory_bytes=machine.memory_bytes,
                profile=profile,
                shares=options.get("layers", (1.0,)),
                dtype=torch.bfloat16,
            )
        except TooLarge:
            continue
        shapes = config["model"]["standin"] or SMALL
        if not any_drafts(config["decoder"]):
            shapes = {"target": shapes["target"]}
        own = Seconds(shapes, machine)
        if shapes != loaded:
            total += own.loading() + own.captures(CONTEXTS)
            loaded = shapes
        prompts = config["task"]["limit"] or LEFT_OPEN
        total += own.run(config["decoder"], prompts, config["max_new"] or 256)
        total += own.profile(profile) if profile else 0.0
        total += own.profile(options["gain"]) if "gain" in options else 0.0
        total += ADVICE_S if options.get("advised") else 0.0
    return total
