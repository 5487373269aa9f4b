"""Predictions against measurements: errors, order, and what following them costs."""

import pandas as pd
import pytest

from ouroboros.tuning.check import accuracy
from ouroboros.tuning.plots import predicted_dots

POINTS = pd.DataFrame(
    [
        ("a", "x_1", "speculative", 1.1, 1.0, (0.2, -0.1)),
        ("a", "x_2", "speculative", 2.0, 2.0, ()),
        ("a", "y", "ouroboros", 2.4, 3.0, (0.3,)),
        ("a", "z", "ouroboros", 2.5, 2.5, ()),
    ],
    columns=["run", "decoder", "kind", "predicted", "measured", "elsewhere"],
)
POINTS["error"] = POINTS.predicted / POINTS.measured - 1.0


def test_errors_order_and_regret():
    every = accuracy(POINTS)
    found = every.loc["all"]
    assert (found.points, found.median_bias) == (4, 0.0)
    assert found.median_error == pytest.approx(0.05) and found.largest_error == pytest.approx(0.2)
    assert found.median_error_elsewhere == pytest.approx(0.2)
    assert found.rank_correlation == pytest.approx(0.8)
    assert found.regret == pytest.approx(3.0 / 2.5 - 1)
    assert list(every.index) == ["all", "speculative", "ouroboros"]
    assert pd.isna(every.rank_correlation["ouroboros"]), "two points have no rank correlation"
    with pytest.raises(ValueError, match="nothing was both predicted and measured"):
        accuracy(POINTS[:0])


def test_the_plot_names_what_was_measured():
    axes = predicted_dots(POINTS, what="speedup over greedy").axes[0]
    assert axes.get_xlabel() == "speedup over greedy, measured"
    assert axes.get_title(loc="left").startswith("4 settings predicted: median error 5.0%")
    assert sum(len(line.get_xdata()) for line in axes.lines) == 2 + len(POINTS)
