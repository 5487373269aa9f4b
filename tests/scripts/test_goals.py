"""The goals of a GPU run: numbers worked out by hand, and which goals are checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from goals import draft_floor_share, floor_share, goals, main
from measured import sample, step

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import Costs, Footprint, Surface

COSTS = Costs(
    Surface.flat({1: 0.010e3, 9: 0.010e3}),
    Surface.constant(1.0),
    footprints={"target": Footprint(1000, 900, 10)},
    copy_bytes_per_s=100_000.0,
)


def timed(example, name, steps, *, tokens=None):
    """A sample whose time is that of its steps."""
    total = sum(s.draft_s + s.verify_s + s.host_s for s in steps)
    first = steps[0].draft_s + steps[0].verify_s + steps[0].host_s
    return sample(example, name, steps, tokens=tokens, wall_s=total, ttft_s=first)


def run():
    plain = [timed(p, "greedy", [step(0, 0, times=(0, 0.01, 0))] * 9) for p in "ab"]
    ours = [
        timed(p, "ouroboros", [step(2, 2, draft_calls=1, times=(0.001, 0.0145, 0.0005))] * 3)
        for p in "ab"
    ]
    peers = [timed(p, "hf_assisted", [step(0, 2, times=(0, 0.024, 0))] * 3) for p in "ab"]
    slower = [replace(s, decoder="hf_assisted_defaults", wall_s=9.0) for s in peers]
    theirs = [replace(s, decoder="hf_greedy", wall_s=2 * s.wall_s) for s in plain]
    rival = [timed(p, "speculative", [step(2, 2, times=(0, 0.018, 0))] * 3) for p in "ab"]
    return [*plain, *ours, *peers, *slower, *theirs, *rival]


def test_goals_by_hand():
    idle = {"greedy": 0.02, "ouroboros": 0.07}
    found = {goal.name: goal for goal in goals(run(), COSTS, judged=True, idle=idle)}
    floor = found["greedy_of_floor"]
    floors_ms = [1e3 * (900 + 10 * (5 + at)) / 100_000 for at in range(1, 9)]
    assert floor.figure == pytest.approx(sum(floors_ms) / 80)
    assert floor.passed and floor.at_least == 0.92
    predicted = found["ouroboros_of_predicted_speedup"]
    assert predicted.figure == pytest.approx((10 / (16 / 3)) / (10 / (11 / 3)))
    assert predicted.passed is False and "measured 1.875, predicted 2.727" in predicted.note
    assisted = found["ouroboros_over_assisted"]
    assert assisted.figure == pytest.approx(24 / 16) and assisted.passed
    assert assisted.note.startswith("hf_assisted, fastest of hf_assisted, hf_assisted_defaults")
    assert found["ouroboros_over_greedy"].figure == pytest.approx(90 / 48)
    assert found["ouroboros_over_hf_greedy"].figure == pytest.approx(180 / 48)
    assert (
        found["ouroboros_over_greedy"].passed is found["ouroboros_over_hf_greedy"].passed is False
    )
    other = found["ouroboros_over_every_other"]
    assert other.figure == pytest.approx(18 / 16) and other.note.startswith("speculative, fastest")
    assert other.passed is False and other.at_least == 1.25
    agreed = found["agreement_of_draft"]
    assert (agreed.figure, agreed.passed) == (1.0, None)
    assert found["gpu_idle_share_greedy"].passed and not found["gpu_idle_share_ouroboros"].passed
    assert found["ouroboros_host_share"].figure == pytest.approx(0.5 / 16)
    assert found["repetition_of_greedy"].figure == 0 and found["repetition_of_greedy"].passed


def test_what_cannot_be_known_is_not_judged():
    found = goals(run()[:2], replace(COSTS, copy_bytes_per_s=None), judged=True)
    figures = {goal.name: (goal.figure, goal.passed) for goal in found}
    assert figures.pop("repetition_of_greedy") == (0, True)
    assert set(figures.values()) == {(None, None)}
    assert all(goal.passed is None for goal in goals(run(), COSTS, judged=False))


def test_calls_larger_than_any_timed_give_no_prediction():
    large = [timed("a", "ouroboros", [step(30, 2, draft_calls=1, times=(0, 1, 0))] * 3)]
    found = {goal.name: goal for goal in goals([*run()[:2], *large], COSTS, judged=True)}
    assert found["ouroboros_of_predicted_speedup"].figure is None


def test_repetitive_text_fails():
    plain = [timed("a", "greedy", [step(0, 0, times=(0, 1, 0))] * 20, tokens=(1,) * 20)]
    ours = [timed("a", "ouroboros", [step(9, 9, draft_calls=1, times=(0, 1, 0))] * 2)]
    found = {goal.name: goal for goal in goals([*plain, *ours], COSTS, judged=True)}
    assert found["repetition_of_greedy"].passed is False
    over = found["ouroboros_over_greedy"]
    assert over.figure > 3.9 and over.passed is None and "repeats too much" in over.note
    assert floor_share([], COSTS) is None


def test_goals_are_written_again_once_the_idle_share_is_known(tmp_path, monkeypatch):
    """With each run's own call times."""
    monkeypatch.setattr(ResultsFolder, "load_samples", lambda folder: run())
    half = replace(COSTS, copy_bytes_per_s=200_000.0)
    for gains, costs in (("", COSTS), ("_gains", half)):
        folder = tmp_path / f"headline_t08{gains}" / "run"
        ResultsFolder(folder).save_run({"model": {"engines": {}}}, status="finished")
        costs.save(folder / "costs.json")
    folders = sorted(map(str, tmp_path.glob("headline_t*/run")))

    def written() -> list[dict[str, str]]:
        main(folders)
        tables = [Path(folder, "goals.md").read_text().splitlines() for folder in folders]
        cells = [[line.split("|") for line in table] for table in tables]
        return [{row[1].strip(): row[2].strip() for row in table} for table in cells]

    first, second = written()
    assert first["gpu idle share greedy"] == "nan"
    floors = [float(one["greedy of floor"]) for one in (first, second)]
    assert floors[0] == pytest.approx(2 * floors[1], abs=0.002)
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "kernel_times.json").write_text('{"idle_share": {"greedy": 0.02}}')
    assert [one["gpu idle share greedy"] for one in written()] == ["0.020", "0.020"]


@pytest.mark.parametrize(("status", "compared"), [("finished", 1), ("finished", 0), ("running", 1)])
def test_goals_are_judged_once_the_texts_were_compared(tmp_path, monkeypatch, status, compared):
    monkeypatch.setattr(ResultsFolder, "load_samples", lambda folder: run())
    folder = tmp_path / "headline_t08" / "run"
    ResultsFolder(folder).save_run({"model": {"engines": {}}}, status=status)
    COSTS.save(folder / "costs.json")
    if compared:
        (folder / "equal.json").touch()
    main([str(folder)])
    text = (folder / "goals.md").read_text()
    judged = compared and status == "finished"
    assert ("reached" in text) == ("missed" in text) == judged
    assert ("not judged: the texts were not compared" in text) != judged


def test_the_drafts_share_of_its_own_floor_is_the_worst_of_its_contexts():
    drafting = Surface({100: {1: 20.0, 8: 30.0}, 300: {1: 50.0, 8: 60.0}})
    feet = {**COSTS.footprints, "draft": Footprint(1000, 900, 10)}
    costs = replace(COSTS, draft=drafting, footprints=feet)
    assert draft_floor_share(costs) == pytest.approx(min(19 / 20, 39 / 50))
    assert draft_floor_share(COSTS) is None
