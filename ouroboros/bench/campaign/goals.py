"""What a run on a GPU is held against: five goals, each a figure and a bound.

A pure function of samples and of costs that were measured apart from them. Invariant: a figure that
cannot be known is None and its goal is not judged; no goal is judged of a rehearsal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ouroboros.bench.advice.predict import predict
from ouroboros.bench.measure import metrics
from ouroboros.bench.measure.intervals import speedup
from ouroboros.bench.measure.metrics import decode_part
from ouroboros.bench.measure.sample import METHOD, PLAIN, Sample
from ouroboros.bench.report.time_report import step_facts
from ouroboros.costs.surface import Costs

ASSISTED = "hf_assisted"
Samples = Sequence[Sample]


@dataclass(frozen=True)
class Goal:
    """A figure and its bound: `at_least`, or `below`. `passed` is None where it was not judged."""

    name: str
    figure: float | None
    at_least: float | None = None
    below: float | None = None
    passed: bool | None = None
    note: str = ""


def goals(samples: Samples, costs: Costs, *, judged: bool) -> list[Goal]:
    """Return the goals of a run of greedy, Ouroboros and transformers' assisted generation."""
    good: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            good.setdefault(sample.decoder, []).append(sample)
    plain, ours = good.get(PLAIN, []), good.get(METHOD, [])
    predicted = predicted_speedup(plain, ours, costs)
    measured = _value(plain, ours)
    reached = measured / predicted if measured and predicted else None
    assisted = assisted_speedups(good)
    hardest = min(assisted, key=lambda name: assisted[name]) if assisted else None
    shares = step_facts(ours)["share"] if ours else None
    found = [
        Goal("greedy_of_floor", floor_share(plain, costs), at_least=0.9),
        Goal(
            "ouroboros_of_predicted_speedup",
            reached,
            at_least=0.9,
            note=f"measured {measured:.3f}, predicted {predicted:.3f}, after each first step"
            if measured and predicted
            else "",
        ),
        Goal(
            "ouroboros_over_assisted",
            assisted[hardest] if hardest else None,
            at_least=1.5,
            note=f"over {hardest}, the fastest of {', '.join(assisted)}" if hardest else "",
        ),
        Goal("ouroboros_host_share", shares and shares["host"], below=0.05),
        Goal("repetition_of_greedy", metrics.mean_repetition_rate(plain), below=0.25),
    ]
    return [_judged(goal) for goal in found] if judged else found


def floor_share(samples: Samples, costs: Costs) -> float | None:
    """Return the least time that greedy's steps could take, bytes over bandwidth, as a share of the
    time that they took; each prompt's first step, with its prefill, left out."""
    floor_ms = spent_ms = 0.0
    for sample in samples:
        context = sample.prompt_tokens
        for index, step in enumerate(sample.steps):
            least = costs.floor_ms("target", context)
            if least is None:
                return None
            if index:
                floor_ms += least
                spent_ms += 1e3 * metrics.step_s(step)
            context += step.new
    return floor_ms / spent_ms if spent_ms else None


def predicted_speedup(plain: Samples, samples: Samples, costs: Costs) -> float | None:
    """Return the speedup over greedy, after each first step, that the cost model gives for these
    very counts: calls as measured apart, and no time outside of the models but what `costs` says.
    None where the costs do not reach far enough."""
    if not plain or not samples:
        return None
    found = predict(plain, samples, costs)
    return None if found.failed else _value(found.plain, found.samples)


def assisted_speedups(good: Mapping[str, Samples]) -> dict[str, float]:
    """Return Ouroboros' speedup over each setting of transformers' assisted generation."""
    found = {
        name: speedup(mine, good.get(METHOD, []))
        for name, mine in good.items()
        if name.startswith(ASSISTED)
    }
    return {name: one.value for name, one in found.items() if one is not None}


def _value(plain: Samples, samples: Samples) -> float | None:
    found = speedup(plain, samples, part=decode_part)
    return None if found is None else found.value


def _judged(goal: Goal) -> Goal:
    if goal.figure is None:
        return goal
    low, high = goal.at_least, goal.below
    passed = (low is None or goal.figure >= low) and (high is None or goal.figure < high)
    return Goal(goal.name, goal.figure, low, high, passed, goal.note)
