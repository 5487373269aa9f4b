"""Values with 95 % intervals over prompts: speedups, amounts per token, scores.

Prompts are the sampling unit: a resampled prompt keeps all its repeats, and its pair of baseline
and decoder, together. Seeds are fixed, so the same samples give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest, bootstrap, gmean

from ouroboros.bench.metrics.sample import Sample

RESAMPLES = 2000
FEWEST_PROMPTS = 8
"""With fewer prompts an interval is shown, but no verdict: a bootstrap of so few is too narrow."""
COST_RATIO = 0.176
"""A draft call in target calls where a run does not record its pair's: bytes of Yi-6B's weights
over Yi-34B's, the published pair."""
Part = Callable[[Sample], tuple[float, int]]
"""(Amount, tokens) of a sample: `whole_part`, `decode_part`, `ttft_part` (seconds), `calls_part`,
or `CostModel.cost`."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval over `prompts` (None with fewer than two of them)."""

    value: float
    low: float | None = None
    high: float | None = None
    prompts: int | None = None

    def text(self, digits: int = 2, unit: str = "") -> str:
        """Return the value with its interval; an interval of no width is left out.

        >>> Interval(2.667, 1.96, 3.4).text(unit="x")
        '2.67x [1.96, 3.40]'
        """
        ends = f" [{self.low:.{digits}f}, {self.high:.{digits}f}]" if self.low != self.high else ""
        return f"{self.value:.{digits}f}{unit}{ends}"

    @property
    def significance(self) -> str:
        """Return "ahead" or "behind" of 1 where the whole interval is, else "inconclusive"; below
        `FEWEST_PROMPTS` no verdict."""
        if self.prompts is not None and self.prompts < FEWEST_PROMPTS:
            return f"under {FEWEST_PROMPTS} prompts"
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "inconclusive"
        return "ahead" if self.low > 1 else "behind"


def whole_part(sample: Sample) -> tuple[float, int]:
    """(Seconds, tokens) of a whole sample, prefill included."""
    return sample.wall_s, len(sample.new_tokens)


def decode_part(sample: Sample) -> tuple[float, int]:
    """(Seconds, tokens) after the first step."""
    if sample.ttft_s is None or not sample.steps:
        return 0.0, 0
    return sample.wall_s - sample.ttft_s, len(sample.new_tokens) - sample.steps[0].new


def ttft_part(sample: Sample) -> tuple[float, int]:
    """(Seconds to the end of the first step, 1): a ratio of these is one of mean TTFTs."""
    return sample.ttft_s or 0.0, 1


def calls_part(sample: Sample, cost_ratio: float = COST_RATIO) -> tuple[float, int]:
    """(Target calls + cost_ratio x draft calls, tokens); a call of several forward passes counts
    as that many where the steps record them."""
    target = sum(step.target_forwards or 1 for step in sample.steps)
    draft = sum(step.draft_forwards or step.draft_calls for step in sample.steps)
    return target + cost_ratio * draft, len(sample.new_tokens)


def speedup(
    baseline: Iterable[Sample],
    samples: Iterable[Sample],
    *,
    part: Part = whole_part,
    macro: bool = False,
    equal: bool = False,
) -> Interval | None:
    """Return the baseline's amount per token / the decoder's, sums over prompts divided once.

    `macro`: the geometric mean of each prompt's ratio, so that prompts weigh alike. `equal`: only
    completions with the same tokens count. The interval is a paired percentile bootstrap over
    prompts. None without a prompt that both finished.
    """
    sums = _paired(baseline, samples, part, equal)
    if not sums.size:
        return None
    return _bootstrapped([_ratio(*sums, axis=())], gmean) if macro else _bootstrapped(sums, _ratio)


def prompt_speedups(
    baseline: Iterable[Sample], samples: Iterable[Sample], *, equal: bool = False
) -> np.ndarray:
    """Return the speedup of each prompt, [prompts]; `equal` as in `speedup`."""
    sums = _paired(baseline, samples, whole_part, equal)
    return _ratio(*sums, axis=()) if sums.size else np.empty(0)


def pooled(samples: Iterable[Sample], *, part: Part) -> Interval | None:
    """Return `part`'s amount per token, sums over prompts divided once, prompts resampled."""
    sums = _sums((sample.example, part(sample)) for sample in samples)
    sums = sums[:, sums[1] > 0] if sums.size else sums
    return _bootstrapped(sums, _per_token) if sums.size else None


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean of one value a prompt, prompts resampled."""
    return _bootstrapped([np.array(values)], np.mean)


def wilson(successes: int, trials: int) -> Interval:
    """Return a share with Wilson's score interval."""
    ends = binomtest(successes, trials).proportion_ci(method="wilson")
    return Interval(successes / trials, float(ends.low), float(ends.high))


def _bootstrapped(data: Iterable[np.ndarray], statistic: Callable) -> Interval:
    data = tuple(data)
    value, prompts = float(statistic(*data)), data[0].size
    if prompts < 2:
        return Interval(value, prompts=prompts)
    batch, rng = max(1, 1_000_000 // prompts), np.random.default_rng(0)
    options = {"n_resamples": RESAMPLES, "batch": batch, "method": "percentile", "rng": rng}
    ends = bootstrap(data, statistic, paired=True, vectorized=True, **options).confidence_interval
    return Interval(value, float(ends.low), float(ends.high), prompts)


def _paired(
    baseline: Iterable[Sample], samples: Iterable[Sample], part: Part, equal: bool
) -> np.ndarray:
    """[baseline's amount and tokens, the decoder's, prompts] of prompts and repeats that both
    finished."""
    found = {(s.example, s.repeat): s for s in samples}
    pairs = [(s, found[key]) for s in baseline if (key := (s.example, s.repeat)) in found]
    rows = [
        (theirs.example, (*part(theirs), *part(ours)))
        for theirs, ours in pairs
        if not equal or theirs.new_tokens == ours.new_tokens
    ]
    return _sums((prompt, row) for prompt, row in rows if all(row))


def _sums(parts: Iterable[tuple[str, Sequence[float]]]) -> np.ndarray:
    """[parts, prompts]: the sums over each prompt's rows; empty without any."""
    rows: dict[str, list[Sequence[float]]] = {}
    for prompt, row in parts:
        rows.setdefault(prompt, []).append(row)
    return np.array([np.sum(own, axis=0) for own in rows.values()], float).T


def _per_token(amounts, tokens, axis=-1):
    return np.sum(amounts, axis=axis) / np.sum(tokens, axis=axis)


def _ratio(*sums, axis=-1):
    return _per_token(*sums[:2], axis) / _per_token(*sums[2:], axis)
