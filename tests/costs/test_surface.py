"""Call costs: surfaces, floors, files, timed samples, and predictions from them."""

import json
import statistics
from dataclasses import replace

import pytest
from composing import ROOT

from ouroboros.bench.metrics.sample import Sample
from ouroboros.core.trace import StepRecord
from ouroboros.costs import NAMES, CostModel, Costs, Footprint, Surface

SURFACE = Surface({100: {1: 10.0, 9: 18.0}, 300: {1: 12.0, 9: 20.0}})
PADDED = Surface({10: {2: 5.0, 8: 6.0}, 20: {2: 7.0, 8: 8.0}}, padded=True)


def step(scored, draft_calls=0, verify_s=0.0, draft_s=0.0, *, new=1, draft_scored=0):
    times = (draft_s, verify_s, 0.001)
    record = StepRecord(0, scored, 0, new, draft_calls, ("target",) * new, *times)
    return replace(record, draft_scored=draft_scored)


def sample(*steps, prompt=3, decoder="d") -> Sample:
    tokens = tuple(range(sum(own.new for own in steps)))
    return Sample("e", decoder, 0, 0, prompt, tokens, steps=steps)


def predicted_ms(costs: Costs, one: Sample) -> list[float]:
    return [1e3 * (s.verify_s + s.draft_s + s.host_s) for s in CostModel(costs).predict(one).steps]


@pytest.mark.parametrize(
    ("surface", "calls"),
    [
        (SURFACE, {(1, 100): 10, (5, 100): 14, (1, 200): 11, (5, 200): 15, (9, 300): 20}),
        (SURFACE, {(5, 7): 14, (10, 200): 20, (1, 301): 12}),  # beyond 9 nodes 1 ms each
        (PADDED, {(1, 10): 5, (2, 10): 5, (3, 10): 6, (8, 10): 6, (3, 15): 7, (9, 10): 6 + 1 / 6}),
        (Surface.flat({1: 10.0, 5: 14.0}), {(3, 10**6): 12}),
        (Surface.flat({4: 1.0, 8: 1.0}), {(1, 10): 1}),
        (Surface.constant(2.0), {(300, 10**6): 2}),
    ],
)
def test_a_surface_is_bilinear_and_extrapolated_but_flat_below_its_smallest_context(surface, calls):
    assert {call: surface.call_ms(*call) for call in calls} == pytest.approx(calls)


def test_surfaces_that_say_nothing_are_refused():
    for nodes in (0, 3):
        with pytest.raises(ValueError, match=f"scores {nodes} nodes, the costs cover 2 to 2: mea"):
            Surface.flat({2: 5.0}).call_ms(nodes, 10)
    for table in ({}, {10: {}}):
        with pytest.raises(ValueError, match="no milliseconds"):
            Surface(table)


def test_a_step_takes_verifying_drafting_and_host_time():
    costs = Costs(Surface.flat({1: 10, 5: 14}), Surface.constant(2), {"": 1, "slow": 3}, 30)
    steps = step(3), step(3, draft_calls=4), step(3, draft_calls=4)
    for decoder, host in (("d", 1), ("slow", 3)):
        found = predicted_ms(costs, sample(*steps, decoder=decoder))
        assert found[0] == pytest.approx(30 + 12 + host)
        assert found[1] == pytest.approx(12 + 8 + host + 30 * 2 / 10), "with the draft's prefill"
        assert found[2] == pytest.approx(12 + 8 + host)
    (long,) = predicted_ms(costs, sample(replace(step(3), target_forwards=2)))
    assert long == pytest.approx(30 + 12 + 10 + 1), "two passes of a long prompt"
    alone = CostModel(Costs(Surface.flat({1: 10})))
    assert "no draft model" in alone.why_not([sample(step(1, draft_calls=1))])
    assert alone.why_not([sample(step(0))]) is None, "another engine's"


def test_a_draft_call_costs_by_its_nodes_and_the_text_it_reads():
    """After a long pause the draft reads text, as calls of the largest size."""
    costs = Costs(SURFACE, Surface.flat({1: 1.0, 5: 2.0}))
    first, drafted = step(1, draft_calls=1, draft_scored=1), step(1, 2, draft_scored=6)
    late = replace(step(1, 2, draft_scored=2), draft_caught_up=13)
    found = predicted_ms(costs, sample(first, drafted, late, prompt=1))
    assert found[1] == pytest.approx(10 + 2 * 1.5)
    assert found[2] == pytest.approx(10 + 2 * 1.0 + 2 * 2.0 + 1.5)
    read = replace(first, draft_caught_up=9)
    known = replace(costs, reading_ms={10: 7.0})
    assert predicted_ms(known, sample(read))[0] == pytest.approx(10 + 7), "its first call included"


def test_the_floor_is_what_must_be_read():
    foot = {"target": Footprint(1200, 1000, 2)}
    costs = Costs(SURFACE, footprints=foot, copy_bytes_per_s=1e6)
    assert costs.floor_ms("target", 500) == pytest.approx(2.0)
    assert costs.floor_ms("draft", 500) is None
    assert Costs(SURFACE, footprints=foot).floor_ms("target", 500) is None


def test_costs_are_the_means_of_later_steps():
    first = step(1, verify_s=0.5)
    last = step(4, 2, 0.03, 0.004, draft_scored=2)
    steps = (first, *(step(1, 0, t) for t in (0.01, 0.02, 0.09)), last)
    costs = Costs.of_samples([sample(*steps)])
    assert costs.target.ms[8] == pytest.approx({1: 40.0, 4: 30.0})
    assert costs.draft is not None and costs.draft.call_ms(1, 8) == pytest.approx(2.0)
    assert costs.host_ms == pytest.approx({"": 1.0, "d": 1.0})
    assert costs.prefill_ms == pytest.approx(460.0)
    long = replace(sample(*steps), prompt_tokens=2 * sample(*steps).prompt_tokens)
    anywhere = {"target": Surface.flat({1: 20.0, 4: 30.0}), "draft": Surface.constant(2.0)}
    costs = replace(costs, **anywhere)
    short_ms, long_ms = (predicted_ms(costs, one)[0] for one in (sample(*steps), long))
    assert long_ms - short_ms == pytest.approx(460.0), "a prefill takes as long as its prompt"
    plain, wide = (step(1, 2, draft_s=s, draft_scored=n) for s, n in ((0.004, 2), (0.01, 40)))
    costs = Costs.of_samples([sample(first, plain, wide)])
    assert costs.draft is not None and costs.draft.ms[6] == pytest.approx({1: 2.0, 20: 5.0})
    slow = [sample(replace(first, verify_s=s), plain) for s in (0.2, 0.3, 0.7)]
    assert Costs.of_samples(slow).prefill_ms == pytest.approx(400.0 - 1e3 * plain.verify_s)
    with pytest.raises(ValueError, match="no timed steps"):
        Costs.of_samples([sample(first)])
    with pytest.raises(ValueError, match="give a run with batch_size=1"):
        Costs.of_samples([sample(first, plain, replace(plain, rows=3))])


WHOLE = Costs(
    Surface(SURFACE.ms, True, {100: {1: 1e-5, 9: 0.2}}),
    Surface.flat({1: 0.5}),
    {"greedy": 0.1, "": 0.2},
    3.0,
    {"target": Footprint(3, 2, 1)},
    1e10,
    {"dtype": "float32", "threads": 1},
)


@pytest.mark.parametrize("costs", [WHOLE, Costs(Surface.constant(1.0)), *map(Costs.load, NAMES)])
def test_costs_survive_their_file(tmp_path, costs):
    costs.save(tmp_path / "costs.json")
    assert Costs.load(tmp_path / "costs.json") == costs


def test_costs_are_a_small_table_by_hand(tmp_path):
    path = tmp_path / "costs.yaml"
    path.write_text("verify_ms: {1: 14.8, 64: 21}\ndraft_ms: 2.9\nhost_ms: 1\n")
    by_hand = Costs(Surface.flat({1: 14.8, 64: 21.0}), Surface.constant(2.9), {"": 1.0})
    assert Costs.load(path) == by_hand
    path.write_text(json.dumps({"verify_ms": {"1": 2}, "draft_ms": {"1": 1, "9": 3}}))
    assert Costs.load(path) == Costs(Surface.flat({1: 2.0}), Surface.flat({1: 1, 9: 3}))


@pytest.mark.parametrize(
    "text",
    [
        *("", "- 1", "{", "draft_ms: 3", "verify_ms: 3", "verify_ms: {1: 2}\nx: 1"),
        *("verify_ms: {1: -3}", "verify_ms: {1: .nan}", "verify_ms: {0: 1}"),
        *("verify_ms: {1: 1}\ndraft_ms: {1: -1}", "verify_ms: {1: 1}\nhost_ms: -1"),
    ],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="holds no costs: give verify_ms"):
        Costs.load(path)
    with pytest.raises(ValueError, match="none is neither a file nor one of epyc, flat"):
        Costs.load(tmp_path / "none")


def test_epyc_is_measured_on_the_reference_pair():
    measured = json.loads((ROOT / "results/profile/costs.json").read_text())
    costs = Costs.load("epyc")
    for surface, role in ((costs.target, "target"), (costs.draft, "draft")):
        rows = measured[role]["ms"].values()
        for nodes in next(iter(rows)):
            median = statistics.median(row[nodes] for row in rows)
            assert surface.call_ms(int(nodes), 700) == pytest.approx(median, abs=0.051)


@pytest.mark.parametrize("name", NAMES)
def test_named_costs_are_loaded_and_cover_large_trees_at_every_context(name):
    costs = Costs.load(name)
    assert costs.about["name"] == name and costs.about["machine"]
    for surface in (costs.target, costs.draft):
        assert surface.call_ms(96, 100_000) >= surface.call_ms(96, 10) > 0
    if name.startswith("h200"):  # a call reads its weights, or multiplies by them
        weights = costs.footprints["target"]
        assert costs.target.call_ms(1, 1) == pytest.approx(weights.call_bytes(1) / 4300e6)
        many = costs.target.call_ms(2048, 64000), 2048 * weights.read_bytes / 790e9
        assert many[0] == pytest.approx(many[1], rel=0.01)
