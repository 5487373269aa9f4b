"""Seconds for counts: a run that was never timed here, as if it had been; and what calls cost.

Counts (of a live run, a replay, an imitation, another machine) and a machine's `Costs` give each
step its seconds. The result is samples again, so that every metric, speedup and interval of the
bench is one of the prediction too; nothing is computed twice in two ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ouroboros.bench.metrics.intervals import Part
from ouroboros.bench.metrics.metrics import step_s
from ouroboros.bench.metrics.sample import Sample
from ouroboros.costs.surface import Costs
from ouroboros.engine.eager import PREFILL_ALONE
from ouroboros.trace import StepRecord

Parts = tuple[float, float, float]
"""Milliseconds in the target, in the draft and in neither."""
Step = tuple[StepRecord, Parts, int]
"""A step, what it takes without the prefill, and the context it was made at."""


@dataclass(frozen=True)
class CostModel:
    """Costs by which a report counts; `name` is in words: "the costs 'epyc'".

    A sample's steps are priced once, however often they are asked for.
    """

    name: str
    costs: Costs
    _known: dict[Sample, Sequence[Step]] = field(default_factory=dict, repr=False, compare=False)

    def timed(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with predicted seconds; none where the costs do not reach so far, or
        where another engine does not say what it scored."""
        try:
            return [_timed(sample, self._steps(sample), self.costs) for sample in samples]
        except ValueError:
            return []

    def why_not(self, samples: Sequence[Sample]) -> str | None:
        """Return why samples are not predicted; None where they are, and for another engine's, of
        which no one expects it."""
        if not any(step.scored for sample in samples for step in sample.steps):
            return None
        try:
            for sample in samples:
                self._steps(sample)
        except ValueError as error:
            return str(error)
        return None

    def cost_part(self) -> Part:
        """Return `cost_part` of these costs."""
        return lambda sample: _cost(sample, self._steps(sample), self.costs)

    def _steps(self, sample: Sample) -> Sequence[Step]:
        if sample not in self._known:
            self._known[sample] = list(_steps(sample, self.costs))
        return self._known[sample]


def timed(sample: Sample, costs: Costs) -> Sample:
    """Return a sample with the seconds that its steps take at these costs.

    The first step holds the target's prefill, and the first that drafts by a model the draft's.
    Raises `ValueError` where a step is larger than any call that was measured.
    """
    return _timed(sample, list(_steps(sample, costs)), costs)


def _timed(sample: Sample, priced: Sequence[Step], costs: Costs) -> Sample:
    steps: list[StepRecord] = []
    read = False
    for step, (verify, draft, host), context in priced:
        if not steps:
            verify += costs.prefill_ms
        if step.draft_calls and not read:
            draft += _draft_prefill_ms(context, costs)
            read = True
        own = replace(step, draft_s=1e-3 * draft, verify_s=1e-3 * verify, host_s=1e-3 * host)
        steps.append(own)
    spent = [step_s(step) for step in steps]
    ttft_s = spent[0] if spent else None
    return replace(sample, steps=tuple(steps), wall_s=sum(spent), ttft_s=ttft_s)


def _steps(sample: Sample, costs: Costs) -> Iterator[Step]:
    """Yield each step, its milliseconds without the prefill, and the context it was made at."""
    context, read = sample.prompt_tokens, False
    for place, step in enumerate(sample.steps):
        own = step if read else replace(step, draft_caught_up=0)
        read = read or step.draft_calls > 0
        verify, draft, host = parts_ms(own, context, costs, decoder=sample.decoder)
        target, small = _further_forwards(step, context, first=not place)
        verify += target * costs.target.call_ms(1, context)
        if small and costs.draft is not None:
            draft += small * costs.draft.call_ms(1, context)
        yield step, (verify, draft, host), context
        context += step.new


def parts_ms(step: StepRecord, context: int, costs: Costs, *, decoder: str) -> Parts:
    """Return the milliseconds of a step in the target, in the draft and in neither.

    Counts made before draft nodes were counted take one node a draft call.
    """
    whole = costs.step_ms(step, context, decoder=decoder)
    verify = costs.target.call_ms(step.scored, context)
    host = costs.host_ms.get(decoder, costs.host_ms.get("", 0.0))
    return verify, whole - verify - host, host


def _further_forwards(step: StepRecord, context: int, *, first: bool) -> tuple[int, int]:
    """How many forwards of target and draft there were beyond one a call: a long stretch of text
    before a branching tree is one of its own. Where an older record does not say, that is known of
    the target's first call alone."""
    branching = step.scored > step.drafted + 1 and context > PREFILL_ALONE
    target = step.target_forwards - 1 if step.target_forwards else int(first and branching)
    return target, max(0, step.draft_forwards - step.draft_calls)


def _draft_prefill_ms(context: int, costs: Costs) -> float:
    """The draft's prefill: the target's at the ratio of their calls."""
    if costs.draft is None:
        return 0.0
    return costs.prefill_ms * costs.draft.call_ms(1, context) / costs.target.call_ms(1, context)


def cost_part(costs: Costs) -> Part:
    """Return the part (see `intervals.Part`) that gives a sample's calls of both models in calls of
    the target on one node at the same context, and its tokens: greedy decoding costs 1 a token.

    The prefill and the host's own time are left out. Raises `ValueError` as `timed` does.
    """
    return lambda sample: _cost(sample, list(_steps(sample, costs)), costs)


def _cost(sample: Sample, priced: Sequence[Step], costs: Costs) -> tuple[float, int]:
    spent = (
        (verify + draft) / costs.target.call_ms(1, context)
        for _, (verify, draft, _), context in priced
    )
    return sum(spent), len(sample.new_tokens)
