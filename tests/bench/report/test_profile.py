"""Profiles, from costs and samples made by hand."""

import pytest
from measured import measured, sample

from ouroboros.bench.report.profile import Profile, call_frame, step_means
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.core.trace import StepRecord
from ouroboros.costs import Costs, Footprint, Surface

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
    phases = row[["step_ms", "draft_ms", "verify_ms", "host_ms", "wait_ms"]].tolist()
    assert phases == pytest.approx([10, 2, 6, 2, 4])


def test_what_another_engine_or_a_failed_sample_lacks_is_missing(samples, tmp_path):
    found = Profile(
        ResultsFolder(tmp_path),
        measured(samples).facts,
        0.001,
        call_frame(COSTS),
        step_means(samples),
    )
    assert found.calls["floor_ms"].tolist() == pytest.approx([6.0, 6.0])
    assert call_frame(Costs(COSTS.target))["floor_ms"].isna().all()
    assert list(found.tables()["floor"]["floor share"]) == ["0.60"]
    steps = found.tables()["steps"].set_index("decoder")
    assert steps["host ms"].to_dict() == {"ours": "2.00", "hf_assisted": "-", "broken": "-"}
    assert steps["step ms"].to_dict() == {"ours": "10.00", "hf_assisted": "20.00", "broken": "-"}
    assert found.to_dict()["steps"][1]["draft_ms"] is None
    found.save()
    assert "Copy bandwidth: 0.0 GB/s" in (tmp_path / "profile.md").read_text()
