"""Costs measured at load are corrected by the times of steps."""

import random

import numpy as np
import pytest

from ouroboros.core.trace import StepRecord
from ouroboros.drafters.step_times import CALL_MS, PLAIN_MS, StepTimes

TARGET = np.array([10.0 + 0.2 * n for n in range(64)])  # milliseconds of 1, 2, ... nodes
DRAFT = np.array([2.0 + 0.1 * n for n in range(64)])


def learned(call=1.0, nodes=1.0, draft=1.0, host=(0.2, 0.5, 0.3), spikes=0.0, steps=120):
    """Learn from steps whose calls take `call` x t(1) + `nodes` x (t(n) - t(1))."""
    times, draw = StepTimes(), random.Random(0)
    for _ in range(steps):
        scored, calls = draw.choice([(1, 0), (5, 0), (9, 3), (17, 2)])
        verify = call * TARGET[0] + nodes * (TARGET[scored - 1] - TARGET[0])
        verify *= 8.0 if draw.random() < spikes else 1.0
        seconds = {"verify_s": verify / 1e3, "draft_s": draft * calls * DRAFT[0] / 1e3}
        seconds["host_s"] = (host[scored > 1] + calls * host[2]) / 1e3
        counts = {"draft_calls": calls, "draft_scored": calls}
        times.observe(StepRecord(scored=scored, **counts, **seconds), TARGET, DRAFT)
    return times.corrected(TARGET, DRAFT)


@pytest.mark.parametrize(
    ("call", "nodes", "draft"), [(1.0, 1.0, 1.0), (1.0, 4.0, 0.6), (300.0, 900.0, 200.0)]
)
def test_factors_are_learned_whatever_the_unit_of_the_costs(call, nodes, draft):
    target, drafting = learned(call, nodes, draft)
    assert target[0] == pytest.approx(call * 10.0 + 0.2, rel=0.02)
    assert target[16] == pytest.approx(call * 10.0 + nodes * 3.2 + 0.5, rel=0.05)
    assert drafting[0] == pytest.approx(draft * 2.0 + 0.3, rel=0.05)


def test_a_step_that_another_program_interrupts_hardly_counts():
    target, _ = learned(spikes=0.1)
    assert target[16] == pytest.approx(13.7, rel=0.1)


def test_before_any_step_only_host_times_are_added():
    target, drafting = StepTimes().corrected(TARGET, DRAFT)
    assert target[0] == 10.0 + PLAIN_MS and drafting[5] > DRAFT[5]


def test_a_draft_is_assumed_to_be_as_much_slower_as_the_target():
    times = StepTimes()
    times.observe(StepRecord(scored=1, verify_s=0.05), TARGET, DRAFT)
    _, drafting = times.corrected(TARGET, DRAFT)
    assert drafting[0] == pytest.approx(5 * DRAFT[0] + CALL_MS)


def test_a_step_is_learned_once():
    times = StepTimes()
    times.observe(StepRecord(scored=5, verify_s=0.05), TARGET, DRAFT)
    first, again = times.corrected(TARGET, DRAFT), times.corrected(TARGET, DRAFT)
    np.testing.assert_array_equal(first, again)
