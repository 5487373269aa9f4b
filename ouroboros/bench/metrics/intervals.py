"""How sure a number is: speedups and scores with their 95 % intervals over prompts.

Prompts are what was drawn from a larger world, so prompts are what is resampled: a prompt keeps all
its repeats, and its pair of baseline and decoder, together. Seeds are fixed: the same samples give
the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, gmean

from ouroboros.bench.metrics.metrics import whole_part
from ouroboros.bench.metrics.sample import Sample

RESAMPLES = 2000
Part = Callable[[Sample], tuple[float, int]]
"""(Amount, tokens) of a sample: `metrics.whole_part` or `decode_part` (seconds), `calls_part`,
`predicted.cost_part`."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval over prompts (None with fewer than two prompts)."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, digits: int = 2, unit: str = "") -> str:
        """Return the value with its interval.

        >>> Interval(2.667, 1.96, 3.4).text(unit="x")
        '2.67x [1.96, 3.40]'
        """
        ends = "" if self.low is None else f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{self.value:.{digits}f}{unit}{ends}"


def speedup(
    baseline: Sequence[Sample], samples: Sequence[Sample], *, part: Part = whole_part
) -> Interval | None:
    """Pooled: seconds per token of the baseline / seconds per token of the decoder.

    Only what both finished counts: a prompt with those of its repeats that both have. Paired
    percentile bootstrap.
    `part`: `whole_part` gives latency_speedup, `decode_part` gives decode_speedup.
    """
    table = _paired(baseline, samples, part)
    return None if table is None else _bootstrapped(tuple(table), _ratio)


def macro_speedup(
    baseline: Sequence[Sample], samples: Sequence[Sample], *, part: Part = whole_part
) -> Interval | None:
    """Geometric mean over prompts of each prompt's own speedup: short and long ones weigh alike."""
    table = _paired(baseline, samples, part)
    if table is None:
        return None
    base_s, base_n, ours_s, ours_n = table
    return _bootstrapped(((base_s / base_n) / (ours_s / ours_n),), gmean)


def pooled(samples: Sequence[Sample], *, part: Part) -> Interval | None:
    """What `part` gives, per token: sums over prompts divided once, prompts resampled."""
    sums = _sums((sample.example, part(sample)) for sample in samples)
    if sums is None or not sums[1].any():
        return None
    return _bootstrapped(tuple(sums[:, sums[1] > 0]), _per_token)


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean of one value a prompt, prompts resampled."""
    return _bootstrapped((np.array(values),), np.mean)


def over_runs(found: Sequence[Interval]) -> Interval:
    """Geometric mean of ratios that were measured in several runs, the runs taken as independent.

    The interval follows from the runs' own by the variances of their logarithms; None where a run
    has none.
    """
    logs = np.log([one.value for one in found])
    value = float(np.exp(logs.mean()))
    if any(one.low is None or one.high is None for one in found):
        return Interval(value)
    spreads = np.log([one.high / one.low for one in found if one.low and one.high])
    half = float(np.sqrt((spreads**2).sum())) / 2 / len(found)
    return Interval(value, value * float(np.exp(-half)), value * float(np.exp(half)))


def _paired(baseline: Iterable[Sample], samples: Iterable[Sample], part: Part) -> np.ndarray | None:
    """[4, prompts]: seconds and tokens of the baseline, then of the decoder; None if no prompt.

    Sums over the repeats in which both have seconds and tokens.
    """
    base = {(s.example, s.repeat): part(s) for s in baseline}
    ours = {(s.example, s.repeat): part(s) for s in samples}
    both = ((key[0], (*base[key], *ours[key])) for key in base if key in ours)
    return _sums((example, parts) for example, parts in both if all(parts))


def _bootstrapped(data: tuple[np.ndarray, ...], statistic) -> Interval:
    value = float(statistic(*data))
    if data[0].size < 2:
        return Interval(value)
    found = bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, 1_000_000 // data[0].size),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def _sums(parts: Iterable[tuple[str, Sequence[float]]]) -> np.ndarray | None:
    """[parts, prompts]: the sums over each prompt's own rows; None without any."""
    rows: dict[str, list[Sequence[float]]] = {}
    for example, row in parts:
        rows.setdefault(example, []).append(row)
    sums = [np.sum(own, axis=0) for own in rows.values()]
    return np.array(sums, dtype=float).T if sums else None


def _per_token(amounts, tokens, axis: int = -1):
    return np.sum(amounts, axis=axis) / np.sum(tokens, axis=axis)


def _ratio(base_s, base_n, ours_s, ours_n, axis: int = -1):
    """Seconds per token against seconds per token, from sums over prompts."""
    base = np.sum(base_s, axis=axis) / np.sum(base_n, axis=axis)
    return base / (np.sum(ours_s, axis=axis) / np.sum(ours_n, axis=axis))
