"""What a decoder is expected to do on a machine, from its counts and the machine's costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ouroboros.bench.metrics.intervals import Interval, speedup
from ouroboros.bench.metrics.metrics import METRICS, phase_shares
from ouroboros.bench.metrics.sample import Sample, steps_of
from ouroboros.costs import CostModel, Costs


@dataclass(frozen=True)
class Prediction:
    """What a decoder is expected to do at some settings.

    `cost_per_token` is in target calls of one node (greedy: 1); `shares` are of the time after the
    first step: "draft", "verify", "host". `samples` and `plain` (greedy's) have predicted seconds.
    `failed` is the reason why nothing is predicted; there are no figures then.
    """

    settings: Mapping[str, object]
    tokens_per_s: float = 0.0
    speedup: Interval | None = None
    cost_per_token: float = 0.0
    tokens_per_step: float = 0.0
    shares: Mapping[str, float] | None = None
    failed: str | None = None
    plain: Sequence[Sample] = field(default=(), repr=False)
    samples: Sequence[Sample] = field(default=(), repr=False)


def predict(
    plain: Sequence[Sample],
    samples: Sequence[Sample],
    costs: Costs,
    *,
    settings: Mapping[str, object] | None = None,
) -> Prediction:
    """Return the prediction for a decoder's samples against plain decoding's of the same prompts.

    `failed` says so if the costs do not cover the samples' calls.
    """
    settings = dict(settings or {})
    try:
        model = CostModel(costs)
        ours, base = ([model.predict(sample) for sample in of] for of in (samples, plain))
        cost = cost_per_token(samples, model)
    except ValueError as error:
        return Prediction(settings, failed=str(error))
    steps = steps_of(ours)
    later = [step for sample in ours for step in sample.steps[1:]]
    return Prediction(
        settings,
        METRICS["output_throughput"](ours) or 0.0,
        speedup(base, ours),
        cost or 0.0,
        METRICS["tokens_per_target_call"](ours) or 0.0,
        {name: share or 0.0 for name, share in phase_shares(later or steps).items()},
        plain=base,
        samples=ours,
    )


def cost_per_token(samples: Sequence[Sample], model: CostModel) -> float | None:
    """Return the cost of a token in target calls of one node: sum of costs / sum of tokens.

    None without tokens. Raises `ValueError` for calls that the costs do not cover.
    """
    parts = [model.cost(sample) for sample in samples]
    tokens = sum(count for _, count in parts)
    return sum(spent for spent, _ in parts) / tokens if tokens else None
