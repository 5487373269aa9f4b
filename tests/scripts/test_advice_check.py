"""Predictions against measurements: errors, rank order, regret."""

from pathlib import Path
from types import SimpleNamespace

import advice_check
import pandas as pd
import pytest
from advice_check import accuracy

from ouroboros.costs import Costs


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


def test_runs_without_times_are_refused(monkeypatch):
    untimed = SimpleNamespace(run={}, folder=Path("counts"), facts=SimpleNamespace(timed=False))
    monkeypatch.setattr(advice_check, "run_folders", lambda place: [place])
    monkeypatch.setattr(advice_check, "load", lambda path: untimed)
    with pytest.raises(ValueError, match="counts has no times to compare with: measure with timin"):
        advice_check.check(Path("counts"), Costs.load("epyc"))
