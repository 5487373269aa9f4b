"""Seconds for counts: a run that was never timed here, as if it had been; and what calls cost.

Counts (of a live run, a replay, an imitation, another machine) and a machine's `Costs` give each
step its seconds. The result is samples again, so that every metric, speedup and interval of the
bench is one of the prediction too; nothing is computed twice in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ouroboros.bench.measure.intervals import Part
from ouroboros.bench.measure.sample import Sample
from ouroboros.costs.surface import Costs
from ouroboros.engine.eager import PREFILL_ALONE
from ouroboros.trace import StepRecord


@dataclass(frozen=True)
class Priced:
    """Costs by which a report counts; `name` is in words: "the costs 'epyc'"."""

    name: str
    costs: Costs

    def timed(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with predicted seconds; none where the costs do not reach so far, or
        where another engine does not say what it scored."""
        try:
            return [timed(sample, self.costs) for sample in samples]
        except ValueError:
            return []


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


def cost_part(costs: Costs) -> Part:
    """Return the part (see `intervals.Part`) that gives a sample's calls of both models in calls of
    the target on one node at the same context, and its tokens: greedy decoding costs 1 a token.

    The prefill and the host's own time are left out. Raises `ValueError` as `timed` does.
    """

    def part(sample: Sample) -> tuple[float, int]:
        total, context = 0.0, sample.prompt_tokens
        for step in sample.steps:
            verify, draft, _ = parts_ms(step, context, costs, decoder=sample.decoder)
            total += (verify + draft) / costs.target.call_ms(1, context)
            context += step.new
        return total, len(sample.new_tokens)

    return part
