"""How well predictions agree with what was measured: errors, and whether they choose well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr


@dataclass(frozen=True)
class Point:
    """One decoder of one run. `kind` names its method; `elsewhere` are the errors of predicting
    half of the prompts from the other half's texts, () with fewer than two prompts."""

    run: str
    decoder: str
    kind: str
    predicted: float
    measured: float
    elsewhere: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Accuracy:
    """Over some points: the median absolute relative error, of predictions from the other prompts
    too; the largest; the median signed one; Spearman's rank correlation; and the regret, what
    following the predictions costs: the best measured value over that of the point predicted best,
    less one."""

    points: int
    median_error: float
    largest_error: float
    median_bias: float
    median_error_elsewhere: float | None
    rank_correlation: float | None
    regret: float


def accuracy(points: Sequence[Point]) -> Accuracy:
    """Return how well predictions agree with measurements of something of which more is better.

    Raises `ValueError` without points.
    """
    if not points:
        raise ValueError("nothing was both predicted and measured: give runs with greedy in them")
    errors = [point.error for point in points]
    elsewhere = [abs(error) for point in points for error in point.elsewhere]
    chosen = max(points, key=lambda point: point.predicted)
    best = max(point.measured for point in points)
    rank = None
    if len(points) > 2:
        found = spearmanr([p.predicted for p in points], [p.measured for p in points])
        rank = None if np.isnan(found.statistic) else float(found.statistic)
    return Accuracy(
        len(points),
        float(np.median(np.abs(errors))),
        float(np.max(np.abs(errors))),
        float(np.median(errors)),
        float(np.median(elsewhere)) if elsewhere else None,
        rank,
        best / chosen.measured - 1.0,
    )
