"""Seconds from counts: predict the time of completions on a machine that they never ran on.

The counts of a run (live, replayed, simulated, or of another machine) and a machine's `Costs` give
each step its seconds. The results are samples again, so every metric, speedup and interval of the
benchmark holds for predictions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ouroboros.costs.costs import Costs, Sample
from ouroboros.trace import StepRecord

LONG_TEXT = 128  # ouroboros.engine.eager.PREFILL_ALONE: longer text is a forward of its own


class Step(NamedTuple):
    """A step, its predicted milliseconds without the prefill, and the context it was made at."""

    record: StepRecord
    verify_ms: float
    draft_ms: float
    host_ms: float
    context: int


class CostModel:
    """Predicts samples by costs; `name` describes these in titles: "the costs 'epyc'".

    A sample's steps are predicted once, however often they are asked for.
    """

    def __init__(self, costs: Costs, name: str = "") -> None:
        self.costs, self.name = costs, name
        self._known: dict[Sample, list[Step]] = {}

    def steps(self, sample: Sample) -> list[Step]:
        """Return a sample's steps with predicted milliseconds; the prefill is left out.

        Raises `ValueError` where a step is larger than any call that was measured.
        """
        if sample in self._known:
            return self._known[sample]
        costs, steps = self.costs, []
        context, draft_has_read = sample.prompt_tokens, False
        for index, step in enumerate(sample.steps):
            # The first draft call reads the prompt: that is its prefill.
            counted = step if draft_has_read else replace(step, draft_caught_up=0)
            draft_has_read = draft_has_read or step.draft_calls > 0
            verify, host = costs.target.call_ms(step.scored, context), costs.host_of(sample.decoder)
            drafting = costs.step_ms(counted, context, decoder=sample.decoder) - verify - host
            # Forwards beyond one a call: long text before a branching tree is one of its own. Older
            # records do not count them; there it is certain of the target's first call alone.
            branching = step.scored > step.drafted + 1 and context > LONG_TEXT
            more = (
                step.target_forwards - 1 if step.target_forwards else int(not index and branching)
            )
            verify += more * costs.target.call_ms(1, context)
            if costs.draft is not None and step.draft_forwards > step.draft_calls:
                more = step.draft_forwards - step.draft_calls
                drafting += more * costs.draft.call_ms(1, context)
            steps.append(Step(step, verify, drafting, host, context))
            context += step.new
        self._known[sample] = steps
        return steps

    def predict(self, sample: Sample) -> Sample:
        """Return a sample with predicted seconds.

        The first step holds the target's prefill, and the first that calls the draft the draft's:
        the target's at the ratio of their calls. Raises `ValueError` as `steps`.
        """
        records: list[StepRecord] = []
        draft_has_read = False
        for step in self.steps(sample):
            verify, drafting = step.verify_ms, step.draft_ms
            if not records:
                verify += self.costs.prefill_ms
            if step.record.draft_calls and not draft_has_read:
                drafting += self._draft_prefill_ms(step.context)
                draft_has_read = True
            seconds = {"draft_s": drafting, "verify_s": verify, "host_s": step.host_ms}
            records.append(
                replace(step.record, **{name: 1e-3 * ms for name, ms in seconds.items()})
            )
        spent = [record.draft_s + record.verify_s + record.host_s for record in records]
        ttft_s = spent[0] if spent else None
        return replace(sample, steps=tuple(records), wall_s=sum(spent), ttft_s=ttft_s)

    def _draft_prefill_ms(self, context: int) -> float:
        """The target's prefill at the ratio of the models' calls."""
        if self.costs.draft is None:
            return 0.0
        draft, target = (s.call_ms(1, context) for s in (self.costs.draft, self.costs.target))
        return self.costs.prefill_ms * draft / target

    def cost(self, sample: Sample) -> tuple[float, int]:
        """Return what a sample's calls of both models cost, in target calls of one node at the same
        context, and its new tokens: greedy decoding costs 1 a token.

        The prefill and host time are left out. Raises `ValueError` as `steps`.
        """
        call_ms = self.costs.target.call_ms
        calls = ((s.verify_ms + s.draft_ms) / call_ms(1, s.context) for s in self.steps(sample))
        return sum(calls), len(sample.new_tokens)

    def predict_all(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with predicted seconds; [] where one of them cannot be predicted."""
        try:
            return [self.predict(sample) for sample in samples]
        except ValueError:
            return []

    def why_not(self, samples: Sequence[Sample]) -> str | None:
        """Return why samples cannot be predicted; None if they can, and for another engine's, which
        does not record its calls."""
        if not any(step.scored for sample in samples for step in sample.steps):
            return None
        try:
            for sample in samples:
                self.steps(sample)
        except ValueError as error:
            return str(error)
        return None
