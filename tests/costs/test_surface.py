"""What calls cost: surfaces, floors, files, timed samples, and what they predict."""

import json
import math
from dataclasses import replace

import pytest

from ouroboros.bench.metrics.sample import Sample
from ouroboros.costs import Costs, Footprint, Surface
from ouroboros.trace import StepRecord

SURFACE = Surface({100: {1: 10.0, 9: 18.0}, 300: {1: 12.0, 9: 20.0}})


def step(scored, draft_calls=0, verify_s=0.0, draft_s=0.0, *, new=1, draft_scored=0):
    times = (draft_s, verify_s, 0.001)
    record = StepRecord(0, scored, 0, new, draft_calls, ("target",) * new, *times)
    return StepRecord(**{**vars(record), "draft_scored": draft_scored})


@pytest.mark.parametrize(
    ("nodes", "context", "ms"),
    [(1, 100, 10), (5, 100, 14), (1, 200, 11), (5, 200, 15), (9, 300, 20), (5, 7, 14)],
)
def test_a_surface_is_bilinear_and_flat_below_its_smallest_context(nodes, context, ms):
    assert SURFACE.call_ms(nodes, context) == pytest.approx(ms)


def test_nothing_is_extrapolated():
    with pytest.raises(ValueError, match="scores 10 nodes, the costs cover 1 to 9: measure"):
        SURFACE.call_ms(10, 200)
    with pytest.raises(ValueError, match="has 301 tokens, the costs cover up to 300: measure"):
        SURFACE.call_ms(1, 301)
    with pytest.raises(ValueError, match="scores 1 nodes, the costs cover 4 to 8"):
        Surface.flat({4: 1.0, 8: 1.0}).call_ms(1, 10)
    for table in ({}, {10: {}}):
        with pytest.raises(ValueError, match="no milliseconds"):
            Surface(table)
    with pytest.raises(ValueError, match="can have no other context"):
        Surface({10: {1: 1.0}, math.inf: {1: 1.0}})


def test_an_engine_that_pads_pays_for_the_next_size():
    padded = Surface({10: {2: 5.0, 8: 6.0}, 20: {2: 7.0, 8: 8.0}}, padded=True)
    assert [padded.call_ms(n, 10) for n in (1, 2, 3, 8)] == [5, 5, 6, 6]
    assert padded.call_ms(3, 15) == 7
    with pytest.raises(ValueError, match="cover 2 to 8"):
        padded.call_ms(9, 10)


def test_a_surface_without_contexts_or_sizes_holds_everywhere():
    assert Surface.flat({1: 10.0, 5: 14.0}).call_ms(3, 10**6) == 12
    assert Surface.constant(2.0).call_ms(300, 10**6) == 2


def test_time_is_verification_drafting_and_host():
    costs = Costs(Surface.flat({1: 10, 5: 14}), Surface.constant(2), {"": 1, "slow": 3}, 30)
    assert costs.step_ms(step(3, draft_calls=4), 9) == pytest.approx(12 + 8 + 1)
    assert costs.step_ms(step(3, draft_calls=4), 9, decoder="slow") == pytest.approx(12 + 8 + 3)
    with pytest.raises(ValueError, match="no draft model"):
        Costs(Surface.flat({1: 10})).step_ms(step(1, draft_calls=1), 9)


def test_a_step_pays_for_the_nodes_of_its_draft_calls():
    costs = Costs(SURFACE, Surface.flat({1: 1.0, 5: 2.0}))
    drafted = step(1, draft_calls=2, draft_scored=6)
    assert costs.step_ms(drafted, 100) == pytest.approx(10 + 2 * 1.5)


def test_text_that_the_draft_takes_in_after_a_pause_is_calls_of_the_largest_size():
    costs = Costs(SURFACE, Surface.flat({1: 1.0, 5: 2.0}))
    late = replace(step(1, draft_calls=2, draft_scored=2), draft_caught_up=13)
    assert costs.step_ms(late, 100) == pytest.approx(10 + 2 * 1.0 + 2 * 2.0 + 1.5)
    with pytest.raises(ValueError, match="scores 6 nodes, the costs cover 1 to 5"):
        costs.step_ms(step(1, draft_calls=1, draft_scored=6), 100)


def test_the_floor_is_what_must_be_read():
    foot = {"target": Footprint(1200, 1000, 2)}
    costs = Costs(SURFACE, footprints=foot, copy_bytes_per_s=1e6)
    assert costs.floor_ms("target", 500) == pytest.approx(2.0)
    assert costs.floor_ms("draft", 500) is None
    assert Costs(SURFACE, footprints=foot).floor_ms("target", 500) is None


def test_costs_are_a_file(tmp_path):
    whole = Costs(
        Surface(SURFACE.ms, True, {100: {1: 1e-5, 9: 0.2}}),
        Surface.flat({1: 0.5}),
        {"greedy": 0.1, "": 0.2},
        3.0,
        {"target": Footprint(3, 2, 1)},
        1e10,
        {"dtype": "float32", "threads": 1},
    )
    for name, costs in (("a.json", whole), ("b.json", Costs(Surface.constant(1.0)))):
        costs.save(tmp_path / name)
        assert Costs.load(tmp_path / name) == costs


def test_costs_are_the_medians_of_later_steps():
    first = step(1, verify_s=0.5)
    steps = (first, *(step(1, 0, t) for t in (0.01, 0.02, 0.09)), step(4, 2, 0.03, 0.004))
    costs = Costs.of_samples([Sample("e", "d", 0, 0, 3, (1, 2, 3, 4, 5), steps=steps)])
    assert costs.target.ms[8] == pytest.approx({1: 20.0, 4: 30.0})
    assert costs.draft is not None and costs.draft.call_ms(1, 8) == pytest.approx(2.0)
    assert costs.host_ms == pytest.approx({"": 1.0, "d": 1.0})
    assert costs.prefill_ms == pytest.approx(480.0)
    with pytest.raises(ValueError, match="no timed steps"):
        Costs.of_samples([Sample("e", "d", 0, 0, 3, steps=(first,))])


def test_draft_calls_cost_by_their_nodes_where_the_samples_say():
    early = step(1, 2, draft_s=9.0, draft_scored=2)
    plain, wide = (step(1, 2, draft_s=s, draft_scored=n) for s, n in ((0.004, 2), (0.01, 40)))
    costs = Costs.of_samples([Sample("e", "d", 0, 0, 3, (1, 2, 3), steps=(early, plain, wide))])
    assert costs.draft is not None and costs.draft.ms[6] == pytest.approx({1: 2.0, 20: 5.0})


def test_costs_are_a_small_table_by_hand(tmp_path):
    path = tmp_path / "costs.yaml"
    path.write_text("verify_ms: {1: 14.8, 64: 21}\ndraft_ms: 2.9\nhost_ms: 1\n")
    by_hand = Costs(Surface.flat({1: 14.8, 64: 21.0}), Surface.constant(2.9), {"": 1.0})
    assert Costs.load(path) == by_hand
    path.write_text(json.dumps({"verify_ms": {"1": 2}}))
    assert Costs.load(path) == Costs(Surface.flat({1: 2.0}))


@pytest.mark.parametrize(
    "text",
    ["", "- 1", "draft_ms: 3", "verify_ms: 3", "verify_ms: {}", "verify_ms: {1: 2}\nx: 1", "{}"],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="holds no costs: give verify_ms"):
        Costs.load(path)
    with pytest.raises(ValueError, match="neither a file nor one of"):
        Costs.load(tmp_path / "none")
