"""A cost curve: from samples, from a file, and what it predicts."""

import json

import pytest

from ouroboros.bench.curve import CostCurve
from ouroboros.bench.sample import Sample
from ouroboros.trace import StepRecord


def step(scored: int, draft_calls: int = 0, verify_s: float = 0.0, draft_s: float = 0.0):
    return StepRecord(0, scored, 0, 1, draft_calls, ("target",), draft_s, verify_s, 0.001)


def test_time_is_verification_drafting_host_and_prefill():
    curve = CostCurve({1: 10.0, 5: 14.0}, draft_ms=2.0, host_ms=1.0, prefill_ms=30.0)
    assert curve.step_ms(step(3, draft_calls=4)) == pytest.approx(12 + 8 + 1)
    assert curve.run_ms([step(1), step(5)]) == pytest.approx(11 + 15 + 30)
    assert curve.run_ms([]) == 0
    with pytest.raises(ValueError, match="scores 6 nodes, the cost curve covers 1 to 5"):
        curve.step_ms(step(6))


def test_a_curve_is_the_medians_of_later_steps():
    first = step(1, verify_s=0.5)
    steps = (first, *(step(1, 0, t) for t in (0.01, 0.02, 0.09)), step(4, 2, 0.03, 0.004))
    curve = CostCurve.measured([Sample("e", "d", 0, 0, 3, steps=steps)])
    assert curve.verify_ms == pytest.approx({1: 20.0, 4: 30.0})
    assert (curve.draft_ms, curve.host_ms) == pytest.approx((2.0, 1.0))
    assert curve.prefill_ms == pytest.approx(480.0)
    with pytest.raises(ValueError, match="no timed steps"):
        CostCurve.measured([Sample("e", "d", 0, 0, 3, steps=(first,))])


def test_a_curve_is_a_small_yaml_or_json_file(tmp_path):
    path = tmp_path / "curve.yaml"
    path.write_text("verify_ms: {1: 14.8, 64: 21}\ndraft_ms: 2.9\n")
    assert CostCurve.load(path) == CostCurve({1: 14.8, 64: 21.0}, draft_ms=2.9)
    path.write_text(json.dumps({"verify_ms": {"1": 2}}))
    assert CostCurve.load(path) == CostCurve({1: 2.0})


@pytest.mark.parametrize(
    "text", ["", "- 1", "draft_ms: 3", "verify_ms: 3", "verify_ms: {}", "verify_ms: {1: 2}\nx: 1"]
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "curve.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no cost curve: give verify_ms|verify_ms is empty"):
        CostCurve.load(path)
    with pytest.raises(ValueError, match="cannot read the cost curve"):
        CostCurve.load(tmp_path / "none")
