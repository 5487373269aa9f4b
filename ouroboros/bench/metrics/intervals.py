"""Values with 95 % CIs over prompts: speedups, amounts per token, scores.

Prompts are the sampling unit: a bootstrap resamples a prompt with all its repeats, of both the
baseline and the decoder. Seeds are fixed, so the same samples give the same interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import binomtest, bootstrap, gmean

RESAMPLES = 2000
FEWEST_PROMPTS = 8
"""Minimum number of prompts for a verdict: with fewer, bootstrap intervals are too narrow."""
FEWEST_FOR_INTERVAL = 3
"""With fewer prompts a value has no interval; tables and plots show it with its `n`."""


@dataclass(frozen=True)
class Interval:
    """A value, its 95 % CI from `low` to `high` (None: no interval) and the number of prompts
    (None: unknown)."""

    value: float
    low: float | None = None
    high: float | None = None
    prompts: int | None = None

    def text(self, digits: int = 2, unit: str = "") -> str:
        """Return the value as text, with its interval if there is one and its ends differ, or with
        the number of prompts if they are `few`.

        >>> Interval(2.667, 1.96, 3.4, 9).text(unit="x"), Interval(2.667, prompts=2).text(unit="x")
        ('2.67x [1.96, 3.40]', '2.67x (n = 2)')
        """
        ends = f" [{self.low:.{digits}f}, {self.high:.{digits}f}]" if self.low != self.high else ""
        return f"{self.value:.{digits}f}{unit}{f' (n = {self.prompts})' if self.few else ends}"

    @property
    def few(self) -> bool:
        """Return whether the value rests on fewer than `FEWEST_FOR_INTERVAL` prompts."""
        return self.prompts is not None and self.prompts < FEWEST_FOR_INTERVAL

    @property
    def significance(self) -> str:
        """Return "ahead" if the whole interval is above 1, "behind" if below, else "inconclusive";
        or "under 8 prompts" with fewer than `FEWEST_PROMPTS`."""
        if self.prompts is not None and self.prompts < FEWEST_PROMPTS:
            return f"under {FEWEST_PROMPTS} prompts"
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "inconclusive"
        return "ahead" if self.low > 1 else "behind"


def paired(
    baseline: pd.DataFrame, samples: pd.DataFrame, amount: str, per: str, equal: bool = False
) -> np.ndarray:
    """Return each prompt's sums over repeats, [4, prompts]: the baseline's `amount` and `per`, then
    the decoder's.

    A repeat counts only if all four values are known and not 0 and, with `equal`, if baseline and
    decoder generated the same tokens.
    """
    sides = baseline, samples[[amount, per, "new_tokens"]].reindex(baseline.index)
    values = np.array([frame[name].to_numpy(float) for frame in sides for name in (amount, per)])
    known = ((values != 0) & ~np.isnan(values)).all(0)
    if equal:
        own, other = (frame["new_tokens"].to_numpy() for frame in sides)
        known &= own == other
    prompts = pd.factorize(baseline.index.get_level_values("example")[known])[0]
    return np.array([np.bincount(prompts, row[known]) for row in values])


def speedup(
    baseline: pd.DataFrame,
    samples: pd.DataFrame,
    amount: str = "wall_s",
    per: str = "tokens",
    *,
    macro: bool = False,
    equal: bool = False,
) -> Interval | None:
    """Return the speedup: the baseline's `amount` / `per` divided by the decoder's.

    `baseline` and `samples` are `sample_frame`s; their columns `amount` and `per` are summed over
    all prompts that both completed, each side over its own completions. With `macro`, the result is
    the geometric mean of each prompt's speedup instead. `equal` leaves out completions whose tokens
    differ from the baseline's. The interval is a paired percentile bootstrap over prompts. None if
    no completions can be paired.
    """
    sums = paired(baseline, samples, amount, per, equal)
    if not sums.size:
        return None
    return bootstrapped([per_token(*sums, axis=())], gmean) if macro else bootstrapped(sums)


def pooled(samples: pd.DataFrame, amount: str) -> Interval | None:
    """Return the column `amount` per token, sum / sum, with a bootstrap interval over prompts. None
    if an amount is unknown or there are no tokens."""
    sums = samples.groupby(level="example", sort=False)[[amount, "tokens"]].sum()
    sums = sums[sums["tokens"] > 0]
    known = len(sums) and samples[amount].notna().all()
    return bootstrapped(sums.to_numpy(float).T) if known else None


def wilson(successes: int, trials: int) -> Interval:
    """Return successes / trials with Wilson's score interval."""
    ends = binomtest(successes, trials).proportion_ci(method="wilson")
    return Interval(successes / trials, float(ends.low), float(ends.high))


def per_token(*sums, axis=-1):
    """Return a ratio of sums over prompts; with `axis=()`, the ratio of each prompt.

    For two arrays [prompts], amount and tokens, the ratio is amount / tokens. For the four arrays
    of `paired`, it is the baseline's amount / tokens divided by the decoder's.
    """
    amount, tokens, *others = (np.sum(one, axis=axis) for one in sums)
    return amount / tokens / (others[0] / others[1]) if others else amount / tokens


def bootstrapped(data: Sequence | np.ndarray, statistic: Callable = per_token) -> Interval:
    """Return `statistic(*data)` with a paired bootstrap interval over prompts; `data` is one or
    more arrays [prompts]."""
    rows = [np.asarray(row) for row in data]
    value, prompts = float(statistic(*rows)), rows[0].size
    if prompts < FEWEST_FOR_INTERVAL:
        return Interval(value, prompts=prompts)
    batch, rng = max(1, 1_000_000 // prompts), np.random.default_rng(0)
    options = {"n_resamples": RESAMPLES, "batch": batch, "method": "percentile", "rng": rng}
    ends = bootstrap(rows, statistic, paired=True, vectorized=True, **options).confidence_interval
    return Interval(value, float(ends.low), float(ends.high), prompts)
