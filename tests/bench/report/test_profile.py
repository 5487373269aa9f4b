"""Profiles, from costs and samples made by hand."""

import pandas as pd
import pytest
from measured import measured, sample

from ouroboros.bench.report.profile import Profile, call_frame, step_means
from ouroboros.bench.run.folder import ResultsFolder
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


@pytest.fixture
def samples():
    first = step(times=(1.0, 1.0, 1.0))
    return [
        sample("a", "ours", [first, step(), step(4)]),
        sample("b", "ours", [first]),
        sample("c", "ours", [], error="OSError: gone"),
        sample("a", "hf_assisted", [step(times=(0, 0.02, 0), scored=0)] * 2),
        sample("c", "broken", [], error="OSError: gone"),
    ]


def test_steps_are_means_without_the_first(samples):
    row = step_means(samples).loc["ours"]
    assert row["steps"] == 2 and row["tokens_per_step"] == 3 and row["nodes_per_step"] == 4
    assert row[["step_ms", "first_step_ms"]].tolist() == pytest.approx([10, 3000])
    phases = row[["draft_ms", "verify_ms", "host_ms", "wait_ms"]].tolist()
    assert phases == pytest.approx([2, 6, 2, 4])
    assert row["draft_calls_per_step"] == 3 and row["nodes_per_draft_call"] == 2


def test_phases_of_another_engine_and_of_failed_samples_are_missing(samples):
    rows = step_means(samples)
    row = rows.loc["hf_assisted"]
    assert row["step_ms"] == pytest.approx(20) and row["draft_calls_per_step"] == 2
    assert row[["draft_ms", "verify_ms", "wait_ms", "nodes_per_step"]].isna().all()
    assert rows.loc["broken", "steps"] == 0 and pd.isna(rows.loc["broken", "step_ms"])
    assert list(rows.index) == ["ours", "hf_assisted", "broken"]


def test_a_call_is_compared_with_its_floor():
    calls = call_frame(COSTS)
    assert calls["floor_ms"].tolist() == pytest.approx([6.0, 6.0])
    assert calls["floor_share"].iloc[0] == pytest.approx(0.6)
    assert call_frame(Costs(COSTS.target))["floor_ms"].isna().all()


def test_tables(samples, tmp_path):
    facts = measured(samples).facts
    folder = ResultsFolder(tmp_path)
    found = Profile(folder, facts, 0.001, call_frame(COSTS), step_means(samples))
    assert list(found.tables()["floor"]["floor share"]) == ["60%"]
    assert list(found.tables()["steps"]["decoder"]) == ["ours", "hf_assisted", "broken"]
    assert found.tables()["steps"]["host ms"].tolist() == ["2.00", "-", "-"]
    assert found.to_dict()["steps"][1]["draft_ms"] is None
    found.save()
    assert "Copy bandwidth: 0.0 GB/s" in (tmp_path / "profile.md").read_text()
