"""Predictions against measurements: errors, order, and what following them costs."""

from dataclasses import asdict

import pandas as pd
import pytest

from ouroboros.tuning.accuracy import Point, accuracy
from ouroboros.tuning.plots import predicted_dots

POINTS = [
    Point("a", "x_1", "speculative", 1.1, 1.0, (0.2, -0.1)),
    Point("a", "x_2", "speculative", 2.0, 2.0),
    Point("a", "y", "ouroboros", 2.4, 3.0, (0.3,)),
    Point("a", "z", "ouroboros", 2.5, 2.5),
]


def test_errors_order_and_regret():
    found = accuracy(POINTS)
    assert (found.points, found.median_bias) == (4, 0.0)
    assert found.median_error == pytest.approx(0.05) and found.largest_error == pytest.approx(0.2)
    assert found.median_error_elsewhere == pytest.approx(0.2)
    assert found.rank_correlation == pytest.approx(0.8)
    assert found.regret == pytest.approx(3.0 / 2.5 - 1)
    assert accuracy(POINTS[:1]).rank_correlation is None
    with pytest.raises(ValueError, match="nothing was both predicted and measured"):
        accuracy([])


def test_the_plot_has_a_marker_for_each_setting():
    points = pd.DataFrame([asdict(point) for point in POINTS])
    axes = predicted_dots(points, what="speedup over greedy").axes[0]
    assert axes.get_xlabel() == "speedup over greedy, measured"
    assert axes.get_title(loc="left").startswith("4 settings predicted: median error 5.0%")
    assert sum(len(line.get_xdata()) for line in axes.lines) == 2 + len(POINTS)
