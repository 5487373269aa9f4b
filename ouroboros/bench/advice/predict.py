"""Seconds for counts: a run that was never timed here, as if it had been.

Counts (of a live run, a replay, an imitation, another machine) and a machine's `Costs` give each
step its seconds. The result is samples again, so that every metric, speedup and interval of the
bench is one of the prediction too; nothing is computed twice in two ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ouroboros.bench.measure import metrics
from ouroboros.bench.measure.intervals import Interval, speedup
from ouroboros.bench.measure.sample import Sample
from ouroboros.costs.surface import Costs
from ouroboros.engine.eager import PREFILL_ALONE
from ouroboros.trace import StepRecord

PLAIN = "greedy"


@dataclass(frozen=True)
class Prediction:
    """What a decoder is expected to do. `shares` are of the time after the first step: "draft",
    "verify", "host". `samples` are the decoder's with predicted seconds, `plain` greedy's. `failed`
    says why there is no prediction, with no figures then."""

    settings: Mapping[str, object]
    tokens_per_s: float = 0.0
    speedup: Interval | None = None
    calls_per_token: float = 0.0
    tokens_per_step: float = 0.0
    shares: Mapping[str, float] | None = None
    failed: str | None = None
    plain: Sequence[Sample] = field(default=(), repr=False)
    samples: Sequence[Sample] = field(default=(), repr=False)


def timed(sample: Sample, costs: Costs) -> Sample:
    """Return a sample with the seconds that its steps take at these costs.

    The first step holds the prefill. Raises `ValueError` where a step is larger than any call that
    was measured.
    """
    steps: list[StepRecord] = []
    context = sample.prompt_tokens
    for step in sample.steps:
        verify, draft, host = parts_ms(step, context, costs, decoder=sample.decoder)
        if not steps:
            first = prefill_ms(step, context, costs)
            verify, draft = verify + first[0], draft + first[1]
        own = replace(step, draft_s=1e-3 * draft, verify_s=1e-3 * verify, host_s=1e-3 * host)
        steps.append(own)
        context += step.new
    spent = [step.verify_s + step.draft_s + step.host_s for step in steps]
    ttft_s = spent[0] if spent else None
    return replace(sample, steps=tuple(steps), wall_s=sum(spent), ttft_s=ttft_s)


def parts_ms(
    step: StepRecord, context: int, costs: Costs, *, decoder: str
) -> tuple[float, float, float]:
    """Return the milliseconds of a step in the target, in the draft and in neither.

    Counts made before draft nodes were counted take one node a draft call.
    """
    whole = costs.step_ms(step, context, decoder=decoder)
    verify = costs.target.call_ms(step.scored, context)
    host = costs.host_ms.get(decoder, costs.host_ms.get("", 0.0))
    return verify, whole - verify - host, host


def prefill_ms(step: StepRecord, context: int, costs: Costs) -> tuple[float, float]:
    """Return what a first step costs on top: in the target, and in the draft if it drafted.

    A branching tree after a long prompt is a call of its own. The draft's prefill is the target's
    at the ratio of their calls.
    """
    plain = costs.target.call_ms(1, context)
    branching = step.scored > step.drafted + 1 and context > PREFILL_ALONE
    verify = costs.prefill_ms + (plain if branching else 0.0)
    if not step.draft_calls or costs.draft is None:
        return verify, 0.0
    return verify, costs.prefill_ms * costs.draft.call_ms(1, context) / plain


def predict(
    plain: Sequence[Sample],
    samples: Sequence[Sample],
    costs: Costs,
    *,
    settings: Mapping[str, object] | None = None,
) -> Prediction:
    """Return the prediction for a decoder's samples against plain decoding's of the same prompts.

    Where the costs do not reach far enough, its `failed` says so.
    """
    settings = dict(settings or {})
    try:
        ours = [timed(sample, costs) for sample in samples]
        base = [timed(sample, costs) for sample in plain]
    except ValueError as error:
        return Prediction(settings, failed=str(error))
    steps = metrics.steps_of(ours)
    later = [step for sample in ours for step in sample.steps[1:]]
    return Prediction(
        settings,
        metrics.output_throughput(ours) or 0.0,
        speedup(base, ours),
        metrics.calls_per_token(steps) or 0.0,
        metrics.tokens_per_target_call(steps) or 0.0,
        {name: share or 0.0 for name, share in metrics.phase_shares(later or steps).items()},
        plain=base,
        samples=ours,
    )
