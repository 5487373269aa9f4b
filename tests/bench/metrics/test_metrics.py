"""Every metric, on steps worked out by hand, and the required fields of registry entries."""

from dataclasses import replace

import measured
import pytest
from bench_models import tiny_llama
from composing import ROOT
from measured import sample, step

from ouroboros import CachedModel
from ouroboros.bench.metrics import METRICS
from ouroboros.bench.metrics.metrics import repetition, score_intervals
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.run import draft_cost
from ouroboros.costs import CostModel, Costs, Surface

# Four steps: the prefill drafts nothing; then 4 of 4, 1 of 4 and 0 of 2 drafted tokens are kept.
STEPS = [
    step(0, 0, times=(0.0, 0.5, 0.1)),
    step(4, 4, draft_calls=4, times=(0.2, 0.5, 0.1)),
    step(4, 1, draft_calls=4, times=(0.2, 0.5, 0.1)),
    step(2, 0, draft_calls=2, times=(0.1, 0.5, 0.1)),
]
RUN = [sample("a", "x", STEPS, wall_s=9.0, ttft_s=1.0)]
FOREIGN = [sample("a", "hf", [step(0, 0, scored=0), step(0, 2, scored=0)])]
GREEDY = [sample("a", "greedy", [step(0, 0)] * 3)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accepted_per_step", 5 / 3),
        ("acceptance_length", 1 + 5 / 3),
        ("tokens_per_target_call", 9 / 4),
        ("draft_calls_per_token", 10 / 9),
        ("scored_per_step", (1 + 5 + 5 + 3) / 4),
        ("nodes_per_token", 14 / 9),
        ("draft_acceptance_rate", 5 / 10),
        ("draft_share", 0.5 / 2.9),
        ("verify_share", 2.0 / 2.9),
        ("host_share", 0.4 / 2.9),
        ("accepted_per_position", [2 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("conditional_per_position", [2 / 3, 1 / 2, 1, 1]),
        ("reached_per_position", [3, 2, 1, 1]),
        ("tokens_by_source", {"draft": 5, "target": 4}),
        ("new_tokens", 9),
        ("target_forwards_per_token", None),
        ("peak_bytes", None),
    ],
)
def test_counts_acceptance_and_phases(name, value):
    assert METRICS[name](RUN) == pytest.approx(value)


def test_acceptance_is_recorded_in_the_fields_of_vllm():
    record = RUN[0].to_dict()["speculative_decoding"]
    assert record == METRICS["speculative_decoding"](RUN)
    assert record == {
        "mean_acceptance_length": pytest.approx(1 + 5 / 3),
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [1, 1, 0, 0, 1],
        "acceptance_histogram_by_draft_length": {2: [1, 0, 0], 4: [0, 1, 0, 0, 1]},
        **{"num_spec_steps": 3, "num_accepted_draft_tokens": 5},
        **{"num_draft_tokens": 10, "num_spec_tokens": 4},
    }
    assert Sample.from_dict(RUN[0].to_dict()) == RUN[0]
    assert GREEDY[0].to_dict()["speculative_decoding"] is None


def test_greedy_accepts_nothing_and_another_engine_has_no_phases():
    one_call = METRICS["calls_per_token"](GREEDY).value, METRICS["tokens_per_target_call"](GREEDY)
    assert one_call == (1, 1) and METRICS["accepted_per_position"](GREEDY) == []
    for name in ("acceptance_length", "accepted_per_step", "draft_acceptance_rate"):
        assert METRICS[name](GREEDY) is None
    assert METRICS["host_share"](FOREIGN) is None
    assert METRICS["tokens_per_target_call"](FOREIGN) == 2
    assert METRICS["host_share"]([]) is None


def measure(samples, names) -> dict:
    return {name: METRICS[name](samples) for name in names}


def test_in_a_batch_speed_is_the_batchs_and_latency_the_users():
    """Two sequences of 4 tokens take three joint steps of 2 s; then one takes a fourth alone."""
    joint = replace(step(0, 0, times=(0, 1, 0)), rows=2)
    last = step(0, 0, times=(0, 2, 0))
    short = sample("a", "x", [joint] * 3, wall_s=3.0, ttft_s=1.0)
    long = sample("b", "x", [*[joint] * 3, last], wall_s=5.0, ttft_s=1.0)
    batch = [replace(short, batch_size=2, ended_s=6.0), replace(long, batch_size=2, ended_s=8.0)]
    wanted = {"output_throughput": 7 / 8, "user_throughput": 7 / 14, "ttft_ms": 2000}
    wanted |= {"e2e_latency_s": 7, "tpot_ms": 2000, "p99_tpot_ms": 2000}
    assert measure(batch, wanted) == pytest.approx(wanted)
    assert METRICS["user_throughput"]([short, long]) is None
    alone = [replace(one, wall_s=2 * one.wall_s) for one in (short, long)]
    assert METRICS["latency_speedup"](batch, greedy=batch).value == 1
    assert METRICS["latency_speedup"](batch, greedy=alone) is None, "other batch sizes never pair"


def test_times_and_throughput():
    both = [*RUN, sample("b", "x", [step(3, 2), step(0, 0)], wall_s=3.0, ttft_s=2.0)]
    # The first: 8 s for its 8 tokens after the first step's 1; the second: 1 s for 1 after 3.
    wanted = {"tpot_ms": 1000 * 9 / 9, "median_tpot_ms": 1000, "p99_tpot_ms": 1000}
    wanted |= {"ttft_ms": 1500, "median_ttft_ms": 1500, "p99_ttft_ms": 1990}
    wanted |= {"output_throughput": 13 / 12, "e2e_latency_s": 6}
    assert measure(both, wanted) == pytest.approx(wanted)
    assert measure([], wanted) == dict.fromkeys(wanted)
    assert METRICS["tpot_ms"]([sample("a", "x", [step(3, 3)])]) is None


def test_predicted_and_measured_seconds_are_compared_without_the_first_step():
    """With the costs' host time, or else the measured one."""
    one = sample("a", "x", [step(0, 0, times=(0, 1, 0.25))] * 3, wall_s=5.0, ttft_s=3.0)
    for host_ms, each in (({}, 0.01 + 0.25), ({"": 30.0}, 0.01 + 0.03)):
        costs = CostModel(Costs(Surface.flat({1: 10.0}), host_ms=host_ms, prefill_ms=90.0))
        assert METRICS["predicted_share"]([one], costs=costs) == pytest.approx(2 * each / 2.0)


def test_calls_are_weighed_by_the_pairs_draft_cost_and_by_forwards():
    assert METRICS["calls_per_token"](RUN).value == pytest.approx((4 + 0.176 * 10) / 9)
    assert METRICS["calls_per_token"](RUN, draft_cost=0.5).value == pytest.approx(1.0)
    counted = [replace(s, target_forwards=2, draft_forwards=5) for s in STEPS]
    found = [replace(RUN[0], steps=tuple(counted))]
    weighed = METRICS["calls_per_token"](found, draft_cost=0.1)
    assert weighed.value == pytest.approx((8 + 0.1 * 20) / 9)
    assert METRICS["target_forwards_per_token"](found) == pytest.approx(8 / 9)
    assert METRICS["draft_forwards_per_token"](found) == pytest.approx(20 / 9)
    assert METRICS["calls_per_token"]([]) is None


def test_a_pairs_draft_cost_is_that_of_the_costs_or_the_bytes_of_its_weights():
    small, large = CachedModel(tiny_llama(0)), CachedModel(tiny_llama(0, layers=3))
    share = draft_cost([large, small])
    assert 0.3 < share < 1 and draft_cost([small, small]) == 1
    assert draft_cost([large]) is None
    costs = Costs(Surface.flat({1: 10.0, 64: 12.0}), Surface.constant(3.0))
    assert draft_cost([large, small], costs) == pytest.approx(0.3)
    assert draft_cost([large, small], replace(costs, draft=None)) == share


def test_repetition_and_unequal_texts():
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert repetition(range(20)) == 0 and repetition([1, 2, 3]) is None
    mixed = [sample("a", "x", [], tokens=(7,) * 10), sample("b", "x", [], tokens=(1,))]
    assert METRICS["repetition_rate"](mixed) == pytest.approx(6 / 7)
    greedy = [sample(e, "greedy", [], tokens=(1, 2, 3)) for e in "abc"]
    texts = {"a": (1, 2, 3), "b": (1, 2), "c": (1, 2, 4), "d": (9,)}
    others = [sample(name, "x", [], tokens=tokens) for name, tokens in texts.items()]
    assert METRICS["unequal"](others, greedy=greedy) == 2
    assert METRICS["unequal"](others, greedy=[]) is None


PROMPTS = "abcdefghij"


@pytest.mark.parametrize(
    ("name", "values", "interval"),
    [
        # Wilson's interval of 7 in 10, worked out by its formula with z = 1.96.
        ("passed", [[1.0]] * 7 + [[0.0]] * 3, (0.7, 0.3968, 0.8922)),
        ("passed", [[1.0, 1.0]] * 7 + [[0.0, 0.0]] * 3, (0.7, 0.3968, 0.8922)),
        ("passed", [[1.0, 0.0], [1.0, 1.0], [0.5, 1.0]], (0.75, 0.5, 1.0)),  # a mean over problems
        ("rouge", [[n / 10] for n in range(10)], (0.45, 0.27, 0.63)),
    ],
)
def test_scores_have_intervals(name, values, interval):
    scores = {
        sample(prompt, "x", [], repeat=repeat): {name: value}
        for prompt, own in zip(PROMPTS, values, strict=False)
        for repeat, value in enumerate(own)
    }
    found = score_intervals(scores, {one.key: value for one, value in scores.items()})
    assert list(found) == ["pass@1" if name == "passed" else name]
    (one,) = found.values()
    assert (one.value, one.low, one.high) == pytest.approx(interval, abs=1e-3)
    assert score_intervals(scores, {}) == {}


def test_a_metric_without_what_it_needs_is_unavailable():
    greedy, fast = measured.GREEDY, measured.FAST
    row = METRICS.measure(fast, greedy=greedy)
    assert list(row) == list(METRICS)
    assert row["latency_speedup"].value == pytest.approx(2.5)
    assert row["cost_per_token"] is row["latency_vs_ouroboros"] is row["verdict"] is None
    untimed = METRICS.measure(fast, greedy=greedy, timed=False)
    assert untimed["latency_speedup"] is untimed["ttft_ms"] is None
    assert untimed["tokens_per_target_call"] == row["tokens_per_target_call"]
    assert len(METRICS.measure(fast, groups=True)) < len(row)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_an_entry_is_complete(metric):
    known = {"samples", "steps", "failed", "greedy", "ouroboros", "audit"}
    tables = {"default", "speed", "lead", "time", "counts", "headline"}
    assert len(metric.heading.split()) <= 3 and len(metric.heading) <= 25
    assert metric.definition.endswith(".") and set(metric.needs) <= known
    assert set(metric.tables.split()) <= tables | {"comparison", "groups"}
    assert set(metric.instead_of.split()) <= set(METRICS)
    assert metric.better in ("", "higher", "lower")


def test_the_default_table_has_seven_columns_and_the_glossary_shows_the_registry():
    assert len([m for m in METRICS.shown_in("default") if not m.instead_of]) <= 6
    for page in ("glossary.md", "links.py"):
        assert "<!-- metrics -->" in (ROOT / "docs" / page).read_text("utf-8")
