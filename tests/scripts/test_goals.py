"""The goals of a GPU run: numbers worked out by hand, and which goals are judged."""

from dataclasses import replace

import pytest
from goals import goals, main
from measured import sample, step

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import Costs, Footprint, Surface

COSTS = Costs(
    Surface.flat({1: 0.010e3, 9: 0.010e3}),
    Surface({100: {1: 1.0, 8: 1.0}, 300: {1: 1.0, 8: 1.0}}),
    footprints={"target": Footprint(1000, 900, 10), "draft": Footprint(50, 45, 0.1)},
    copy_bytes_per_s=100_000.0,
)


def timed(name, counts, times, count=3, *, tokens=None, example="a", **options):
    """A sample of `count` equal steps, whose time is that of its steps."""
    first = sum(times)
    steps = [step(*counts, times=times, **options)] * count
    return sample(example, name, steps, tokens=tokens, wall_s=count * first, ttft_s=first)


def run():
    rows = []
    for example in "ab":
        plain = timed("greedy", (0, 0), (0, 0.01, 0), 9, example=example)
        peer = timed("hf_assisted", (0, 2), (0, 0.024, 0), example=example)
        times = (0.001, 0.0145, 0.0005)
        rows += [
            plain,
            timed("ouroboros", (2, 2), times, example=example, draft_calls=1),
            peer,
            replace(peer, decoder="hf_assisted_defaults", wall_s=9.0),
            replace(plain, decoder="hf_greedy", wall_s=2 * plain.wall_s),
            timed("speculative", (2, 2), (0, 0.018, 0), example=example),
        ]
    return rows


def judged(samples, costs=COSTS, **options):
    return {goal.name: goal for goal in goals(samples, costs, **{"judged": True, **options})}


def test_goals_by_hand():
    found = judged(run(), idle={"greedy": 0.02, "ouroboros": 0.07})
    floors_ms = [1e3 * (900 + 10 * (5 + at)) / 100_000 for at in range(1, 9)]
    expected = {
        "greedy_of_floor": (sum(floors_ms) / 80, True),
        "draft_of_floor": (1e3 * (45 + 0.1 * 100) / 100_000, False),
        "ouroboros_of_predicted_speedup": ((10 / (16 / 3)) / (10 / (11 / 3)), False),
        "ouroboros_over_assisted": (24 / 16, True),
        "ouroboros_over_greedy": (90 / 48, False),
        "ouroboros_over_hf_greedy": (180 / 48, False),
        "ouroboros_over_every_other": (18 / 16, False),
        "agreement_of_draft": (1.0, None),
        "gpu_idle_share_greedy": (0.02, True),
        "gpu_idle_share_ouroboros": (0.07, False),
        "ouroboros_host_share": (0.5 / 16, True),
        "repetition_of_greedy": (0.0, True),
    }
    for name, (figure, passed) in expected.items():
        assert found[name].figure == pytest.approx(figure) and found[name].passed is passed, name
    assert found["ouroboros_over_assisted"].note.startswith("hf_assisted, fastest of hf_assisted,")
    assert found["ouroboros_over_every_other"].note.startswith("speculative, fastest")
    note = found["ouroboros_of_predicted_speedup"].note
    assert note == "measured 1.875, predicted 2.727"


def test_what_cannot_be_known_is_not_judged():
    plain = [one for one in run() if one.decoder == "greedy"]
    found = judged(plain, replace(COSTS, copy_bytes_per_s=None))
    assert found.pop("repetition_of_greedy").passed
    assert {(goal.figure, goal.passed) for goal in found.values()} == {(None, None)}
    loop = timed("greedy", (0, 0), (0, 1, 0), 20, tokens=(1,) * 20)
    found = judged([loop, timed("ouroboros", (9, 9), (0, 1, 0), 2, draft_calls=1)])
    assert found["repetition_of_greedy"].passed is False
    over = found["ouroboros_over_greedy"]
    assert over.figure > 3.9 and over.passed is None and "repeats too much" in over.note


@pytest.mark.parametrize(
    ("status", "compared", "words"),
    [
        ("finished", True, ()),
        ("finished", False, ()),
        ("running", True, ()),
        ("finished", True, ("--rehearsal",)),
    ],
)
def test_goals_are_judged_once_the_texts_were_compared(
    tmp_path, monkeypatch, status, compared, words
):
    monkeypatch.setattr(ResultsFolder, "load_samples", lambda folder: run())
    folder = tmp_path / "headline_t08" / "run"
    ResultsFolder(folder).save_run({"model": {"engines": {}}}, status=status)
    COSTS.save(folder / "costs.json")
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "kernel_times.json").write_text('{"idle_share": {"greedy": 0.02}}')
    if compared:
        (folder / "equal.json").touch()
    main([str(folder), *words])
    text = (folder / "goals.md").read_text()
    said = compared and status == "finished"
    assert "| gpu idle share greedy          |    0.020 |" in text
    assert ("reached" in text) == ("missed" in text) == (said and not words)
    assert ("not judged: the texts were not compared" in text) != said
