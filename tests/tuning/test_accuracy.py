"""Predictions against measurements: errors, order, and what following them costs."""

import pytest

from ouroboros.bench.report.plots.style import save_png
from ouroboros.tuning.accuracy import Point, accuracy
from ouroboros.tuning.dots import predicted_dots

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


def test_the_picture_is_drawn(tmp_path):
    figure = predicted_dots(POINTS, what="speedup over greedy", about="Toy.")
    axes = figure.axes[0]
    assert axes.get_xlabel() == "speedup over greedy, measured"
    assert "4 settings" in axes.get_title(loc="left")
    save_png(figure, tmp_path / "check.png")
    assert (tmp_path / "check.png").stat().st_size > 10_000
