"""Predictions against measurements: errors, rank order, regret."""

from pathlib import Path
from types import SimpleNamespace

import advice_check
import pandas as pd
import pytest
from advice_check import accuracy


def test_errors_order_and_regret():
    rows = [
        ("speculative", 1.1, 1.0, (0.2, -0.1)),
        ("speculative", 2.0, 2.0, ()),
        ("ouroboros", 2.4, 3.0, (0.3,)),
        ("ouroboros", 2.5, 2.5, ()),
    ]
    points = pd.DataFrame(rows, columns=["kind", "predicted", "measured", "elsewhere"])
    points["error"] = points.predicted / points.measured - 1.0
    every = accuracy(points)
    found = every.loc["all"]
    assert (found.points, found.median_bias) == (4, 0.0)
    assert found.median_error == pytest.approx(0.05) and found.largest_error == pytest.approx(0.2)
    assert found.median_error_elsewhere == pytest.approx(0.2)
    assert found.rank_correlation == pytest.approx(0.8)
    assert found.regret == pytest.approx(3.0 / 2.5 - 1)
    assert list(every.index) == ["all", "speculative", "ouroboros"]
    assert pd.isna(every.rank_correlation["ouroboros"]), "two points have no rank correlation"
    with pytest.raises(SystemExit, match="nothing was both predicted and measured"):
        accuracy(points[:0])


def test_timed_and_untimed_runs_are_not_compared_in_one_table(monkeypatch):
    def load(timed):
        return SimpleNamespace(facts=SimpleNamespace(timed=timed))

    monkeypatch.setattr(advice_check, "run_folders", lambda place: [True, False])
    monkeypatch.setattr(advice_check, "load", load)
    with pytest.raises(ValueError, match="runs holds timed and untimed runs: give a folder of one"):
        advice_check.check(Path("runs"))
