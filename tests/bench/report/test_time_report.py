"""Where the time goes, from hand-made costs and samples."""

import pytest
from measured import sample

from ouroboros.bench.report.plots.costs import step_time, verify_cost
from ouroboros.bench.report.time_report import floor_frame, step_frame, time_facts, to_markdown
from ouroboros.costs import Costs, Footprint, Surface
from ouroboros.trace import StepRecord

COSTS = Costs(
    Surface({100: {1: 10.0, 8: 12.0}}, spread_ms={100: {1: 0.5, 8: 0.5}}),
    footprints={"target": Footprint(6000, 5000, 10)},
    copy_bytes_per_s=1e6,
)


def step(draft_calls=2, times=(0.002, 0.006, 0.002), wait_s=0.004, scored=4):
    sources = ("draft", "draft", "bonus")
    return StepRecord(2, scored, 2, 3, draft_calls, sources, *times, wait_s, 2 * draft_calls)


def facts():
    first = step(times=(1.0, 1.0, 1.0))
    samples = [
        sample("a", "ours", [first, step(), step(4)]),
        sample("b", "ours", [first]),
        sample("c", "ours", [], error="OSError: gone"),
        sample("a", "hf_assisted", [step(times=(0, 0.02, 0), scored=0)] * 2),
    ]
    title = "toy, 2 prompts · tiny pair · float32 · greedy (T=0) · batch size 1 · a machine"
    return {"title": title, "footnote": "versions", **time_facts(COSTS, samples)}


def test_steps_are_means_without_the_first():
    row = facts()["steps"]["ours"]
    assert (row["steps"], row["errors"]) == (2, ["OSError: gone"])
    assert row["step_ms"] == pytest.approx(10) and row["first_step_ms"] == pytest.approx(3000)
    assert row["share"] == pytest.approx({"draft": 0.2, "verify": 0.6, "host": 0.2})
    assert (row["wait_ms"], row["wait_share"]) == pytest.approx((4, 0.4))
    assert row["draft_calls_per_step"] == 3 and row["nodes_per_draft_call"] == 2
    assert (row["nodes_per_step"], row["tokens_per_step"]) == (4, 3)


def test_another_engines_phases_are_not_known():
    row = facts()["steps"]["hf_assisted"]
    assert row["step_ms"] == pytest.approx(20) and row["draft_calls_per_step"] == 2
    assert row["ms"] is row["share"] is row["wait_ms"] is row["nodes_per_step"] is None


def test_a_call_is_held_against_its_floor():
    small, large = facts()["calls"]["target"]["points"]
    assert small["floor_ms"] == large["floor_ms"] == pytest.approx(6.0)
    assert small["floor_share"] == pytest.approx(0.6) and small["spread_ms"] == 0.5
    assert list(floor_frame(facts())["of the floor"]) == ["60 %"]


def test_words_tables_and_pictures():
    found = facts()
    assert list(step_frame(found)["decoder"]) == ["ours", "hf_assisted"]
    text = to_markdown(found)
    assert "| 8" in text and "12.0 ± 0.5" in text and "6.00 (60 %)" in text
    assert verify_cost(found).axes and step_time(found).axes
    assert step_time({**found, "steps": {}}) is None
