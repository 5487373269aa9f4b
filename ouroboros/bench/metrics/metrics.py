"""Every metric, each one function over samples and each defined in its docstring.

Words: a *step* is one turn of the loop, which is one target call; *accepted* leaves the bonus token
out and *new* includes it. "Pooled" means that sums are divided once, so that long completions weigh
more; "macro" means that prompts weigh alike. A metric with nothing to count is None. How sure a
number is: `ouroboros.bench.metrics.intervals`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ouroboros.bench.metrics.sample import Sample
from ouroboros.trace import StepRecord

COST_RATIO = 0.176
"""A draft call in target calls where a run does not record its pair's: bytes of Yi-6B's weights
over Yi-34B's, the published pair."""

REAL_TEXT = (0.09, 0.15)
"""Repetition rates of real models' greedy answers: Llama-2-70B on MT-Bench 9 %, Vicuna-7B on
Spec-Bench 13 %, a 33B code model on HumanEval 14 %. Text that repeats itself more flatters every
decoder that drafts from the text."""


def steps_of(samples: Iterable[Sample]) -> list[StepRecord]:
    """Return all steps of all samples."""
    return [step for sample in samples for step in sample.steps]


def acceptance_length(steps: Sequence[StepRecord]) -> float | None:
    """Tokens per step that had a draft: 1 + accepted / such steps (bonus included; as vLLM)."""
    drafted = [step for step in steps if step.drafted]
    return 1 + sum(s.accepted for s in drafted) / len(drafted) if drafted else None


def tokens_per_target_call(steps: Sequence[StepRecord]) -> float | None:
    """New tokens / target calls; the prefill is part of the first call."""
    return _share(sum(s.new for s in steps), len(steps))


def draft_calls_per_token(steps: Sequence[StepRecord]) -> float | None:
    """Draft model calls / new tokens."""
    return _share(sum(s.draft_calls for s in steps), sum(s.new for s in steps))


def nodes_per_token(steps: Sequence[StepRecord]) -> float | None:
    """Nodes that the target computed / new tokens, the prompt excluded (None: another engine)."""
    return _share(sum(s.scored for s in steps), sum(s.new for s in steps if s.scored))


def draft_nodes_per_token(steps: Sequence[StepRecord]) -> float | None:
    """Nodes that the draft computed / new tokens; None where the steps do not say."""
    if sum(s.draft_calls for s in steps) and not any(s.draft_scored for s in steps):
        return None
    return _share(sum(s.draft_scored for s in steps), sum(s.new for s in steps))


def forwards_per_token(steps: Sequence[StepRecord], role: str) -> float | None:
    """Forwards of the "target" or the "draft" / new tokens; None where the records do not say."""
    if not all(s.target_forwards for s in steps):
        return None
    return _share(sum(getattr(s, f"{role}_forwards") for s in steps), sum(s.new for s in steps))


def calls_per_token(steps: Sequence[StepRecord], cost_ratio: float = COST_RATIO) -> float | None:
    """(Target calls + cost_ratio x draft calls) / new tokens: cost free of any machine, and of how
    many nodes a call scores. A call that was several forwards counts as so many.

    Greedy decoding is 1, lower is better.
    """
    return _share(_weighed_calls(steps, cost_ratio), sum(s.new for s in steps))


def draft_acceptance_rate(steps: Sequence[StepRecord]) -> float | None:
    """Accepted / drafted tokens, where a step's drafted is the depth of its deepest branch."""
    return _share(sum(s.accepted for s in steps), sum(s.drafted for s in steps))


def acceptance_rate_per_position(steps: Sequence[StepRecord]) -> list[float]:
    """At index k - 1: of the steps that drafted k tokens or more, the share that accepted k.

    Equals vLLM's metric of that name where all drafts are equally long.
    """
    kept = Counter(k for s in steps for k in range(1, min(s.accepted, s.drafted) + 1))
    tried = tries_per_position(steps)
    return [kept[k] / tries for k, tries in enumerate(tried, start=1)]


def tries_per_position(steps: Sequence[StepRecord]) -> list[int]:
    """At index k - 1: the steps that drafted k tokens or more, the denominators of the rates."""
    tried = Counter(k for s in steps for k in range(1, s.drafted + 1))
    return [tried[k] for k in sorted(tried)]


def acceptance_histogram(steps: Sequence[StepRecord]) -> dict[int, int]:
    """Steps by the number of draft tokens they accepted: the master record of the rates above."""
    return dict(sorted(Counter(s.accepted for s in steps).items()))


def scored_per_step(steps: Sequence[StepRecord]) -> float | None:
    """Nodes that the target computed per call, root and probes included, prompt excluded."""
    return _share(sum(s.scored for s in steps), sum(s.scored > 0 for s in steps))


def tokens_by_source(steps: Sequence[StepRecord]) -> dict[str, int]:
    """New tokens by who proposed them; corrections and bonus tokens are the target's."""
    return dict(Counter(source or "unknown" for s in steps for source in s.sources).most_common())


def phase_shares(steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Shares of the time in steps spent in the draft model, the target and the host (Python).

    None for another engine, which does not tell them apart (nothing is known to be scored there).
    """
    steps = [step for step in steps if step.scored]
    totals = {
        "draft": sum(s.draft_s for s in steps),
        "verify": sum(s.verify_s for s in steps),
        "host": sum(s.host_s for s in steps),
    }
    return {name: _share(seconds, sum(totals.values())) for name, seconds in totals.items()}


def host_ms_per_step(steps: Sequence[StepRecord]) -> float | None:
    """Milliseconds per step outside both models: trees, pool (None for another engine)."""
    steps = [step for step in steps if step.scored]
    return _share(1e3 * sum(s.host_s for s in steps), len(steps))


def ttft_ms(samples: Sequence[Sample]) -> float | None:
    """Mean milliseconds from the call to the end of the first step, prefill included."""
    mean_s = _mean([s.ttft_s for s in samples if s.ttft_s is not None])
    return None if mean_s is None else 1e3 * mean_s


def tpot_ms(samples: Sequence[Sample]) -> float | None:
    """Milliseconds per output token without the first step, pooled.

    (Latency - TTFT) / (tokens - tokens of the first step): greedy's first step is its first token,
    the field's definition; a decoder that gets several tokens in it is not credited with them.
    """
    pairs = [decode_part(s) for s in samples]
    return _share(1e3 * sum(p[0] for p in pairs), sum(p[1] for p in pairs))


def e2e_latency_s(samples: Sequence[Sample]) -> float | None:
    """Mean seconds from the call to the last token of a completion, prefill included."""
    return _mean([s.wall_s for s in samples])


def output_throughput(samples: Sequence[Sample]) -> float | None:
    """New tokens / seconds from call to last token, pooled over prompts (prefill included)."""
    return _share(sum(len(s.new_tokens) for s in samples), sum(s.wall_s for s in samples))


def macro_throughput(samples: Sequence[Sample]) -> float | None:
    """Mean over prompts of new tokens / seconds."""
    rates = (_share(len(s.new_tokens), s.wall_s) for s in samples)
    return _mean([rate for rate in rates if rate is not None])


def energy_per_token_j(samples: Sequence[Sample]) -> float | None:
    """Joules per new token, prefill included, pooled over the samples whose energy is known."""
    known = [s for s in samples if s.energy_j is not None]
    return _share(sum(s.energy_j or 0.0 for s in known), sum(len(s.new_tokens) for s in known))


def step_s(step: StepRecord) -> float:
    """Seconds of a step: in both models and on the host."""
    return step.draft_s + step.verify_s + step.host_s


def whole_part(sample: Sample) -> tuple[float, int]:
    """(Seconds, tokens) of a whole sample, prefill included: the measure of latency_speedup."""
    return sample.wall_s, len(sample.new_tokens)


def decode_part(sample: Sample) -> tuple[float, int]:
    """(Seconds, tokens) after the first step: the measure of tpot_ms and decode_speedup."""
    if sample.ttft_s is None or not sample.steps:
        return 0.0, 0
    return sample.wall_s - sample.ttft_s, len(sample.new_tokens) - sample.steps[0].new


def ttft_part(sample: Sample) -> tuple[float, int]:
    """(Seconds to the end of the first step, 1): a ratio of these is one of mean TTFTs."""
    return sample.ttft_s or 0.0, 1


def calls_part(sample: Sample, cost_ratio: float = COST_RATIO) -> tuple[float, int]:
    """(Calls, tokens) of a sample, calls as in calls_per_token: what no machine changes."""
    return _weighed_calls(sample.steps, cost_ratio), len(sample.new_tokens)


def repetition_rate(tokens: Sequence[int], n: int = 4) -> float | None:
    """Share of a completion's n-grams that occurred before in it.

    >>> repetition_rate([1, 2, 3, 4, 1, 2, 3, 4])
    0.2
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


def mean_repetition_rate(samples: Sequence[Sample]) -> float | None:
    """Mean repetition rate over completions (those under 4 tokens have none)."""
    rates = (repetition_rate(s.new_tokens) for s in samples)
    return _mean([rate for rate in rates if rate is not None])


def of_real_text(rate: float) -> str:
    """Return where a repetition rate lies: "below", "within" or "above" that of real models' text.

    >>> [of_real_text(rate) for rate in (0.02, 0.11, 0.39)]
    ['below', 'within', 'above']
    """
    low, high = REAL_TEXT
    return "below" if rate < low else "above" if rate > high else "within"


def unequal(baseline: Sequence[Sample], samples: Sequence[Sample]) -> int | None:
    """Samples whose tokens or length differ from the baseline's for the same prompt and repeat."""
    expected = {(s.example, s.repeat): s.new_tokens for s in baseline}
    pairs = [(expected[key], s) for s in samples if (key := (s.example, s.repeat)) in expected]
    return sum(tokens != s.new_tokens for tokens, s in pairs) if pairs else None


def _weighed_calls(steps: Sequence[StepRecord], cost_ratio: float) -> float:
    target = sum(s.target_forwards or 1 for s in steps)
    return target + cost_ratio * sum(s.draft_forwards or s.draft_calls for s in steps)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
