"""Every metric and interval on traces worked out by hand."""

import math
from dataclasses import replace

import pytest
from bench_models import tiny_llama
from measured import RUN, greedy_and_fast, sample, step

from ouroboros import CachedModel
from ouroboros.bench.metrics import intervals, metrics, scoring
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.report.folder_report import legend
from ouroboros.bench.report.summary import summarise
from ouroboros.bench.run.run import draft_cost
from ouroboros.costs import Costs, Surface

# Four steps: the prefill drafts nothing; then 4 of 4, 1 of 4 and 0 of 2 drafted tokens are kept.
STEPS = [
    step(0, 0, times=(0.0, 0.5, 0.1)),
    step(4, 4, draft_calls=4, times=(0.2, 0.5, 0.1)),
    step(4, 1, draft_calls=4, times=(0.2, 0.5, 0.1)),
    step(2, 0, draft_calls=2, times=(0.1, 0.5, 0.1)),
]


def test_counts_per_call():
    assert metrics.acceptance_length(STEPS) == pytest.approx(1 + 5 / 3)
    assert metrics.tokens_per_target_call(STEPS) == pytest.approx(9 / 4)
    assert metrics.draft_calls_per_token(STEPS) == pytest.approx(10 / 9)
    assert metrics.calls_per_token(STEPS) == pytest.approx((4 + 0.176 * 10) / 9)
    assert metrics.calls_per_token(STEPS, cost_ratio=0.5) == pytest.approx(1.0)
    assert metrics.scored_per_step(STEPS) == pytest.approx((1 + 5 + 5 + 3) / 4)


def test_acceptance():
    assert metrics.draft_acceptance_rate(STEPS) == pytest.approx(5 / 10)
    assert metrics.acceptance_rate_per_position(STEPS) == pytest.approx(
        [2 / 3, 1 / 3, 1 / 2, 1 / 2]
    )
    assert metrics.acceptance_histogram(STEPS) == {0: 2, 1: 1, 4: 1}
    assert metrics.tokens_by_source(STEPS) == {"draft": 5, "target": 4}


def test_greedy_has_one_call_per_token_and_no_acceptance():
    greedy = [step(0, 0)] * 3
    assert metrics.calls_per_token(greedy) == metrics.tokens_per_target_call(greedy) == 1
    assert metrics.acceptance_length(greedy) is None
    assert metrics.draft_acceptance_rate(greedy) is None
    assert metrics.acceptance_rate_per_position(greedy) == []


def test_phases():
    shares = metrics.phase_shares(STEPS)
    assert shares == pytest.approx({"draft": 0.5 / 2.9, "verify": 2.0 / 2.9, "host": 0.4 / 2.9})
    assert metrics.host_ms_per_step(STEPS) == pytest.approx(100)


def test_an_engine_that_does_not_tell_phases_has_none():
    foreign = [step(0, 0, scored=0), step(0, 2, scored=0)]
    assert set(metrics.phase_shares(foreign).values()) == {None}
    assert metrics.host_ms_per_step(foreign) is None
    assert metrics.scored_per_step(foreign) is None
    assert metrics.tokens_per_target_call(foreign) == 2


def test_times_and_throughput():
    one = sample("a", "x", STEPS, wall_s=9.0, ttft_s=1.0)
    two = sample("b", "x", [step(3, 2), step(0, 0)], wall_s=3.0, ttft_s=2.0)
    both = [one, two]
    assert metrics.ttft_ms(both) == pytest.approx(1500)
    # One: 8 s for its 8 tokens after the first step's 1; two: 1 s for 1 token after 3.
    assert metrics.tpot_ms(both) == pytest.approx(1000 * 9 / 9)
    assert metrics.output_throughput(both) == pytest.approx(13 / 12)
    assert metrics.macro_throughput(both) == pytest.approx((9 / 9 + 4 / 3) / 2)


def test_a_completion_of_one_step_has_no_tpot():
    assert metrics.tpot_ms([sample("a", "x", [step(3, 3)])]) is None


def test_speedups_are_paired_ratios_of_seconds_per_token():
    greedy, fast = greedy_and_fast()
    whole = intervals.speedup(greedy, fast)
    assert whole.value == pytest.approx((20 / 10) / (8 / 10))
    assert whole.low == pytest.approx(2.0) and whole.high == pytest.approx(3.0)
    after = intervals.speedup(greedy, fast, part=metrics.decode_part)
    assert after.value == pytest.approx((16 / 8) / (4 / 8))
    same = intervals.speedup(greedy, greedy)
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))


def test_speedup_counts_only_repeats_that_both_finished():
    greedy, fast = greedy_and_fast()
    assert intervals.speedup(greedy, fast[:1]) == intervals.Interval(pytest.approx(2.0))
    assert intervals.speedup(greedy, []) is None
    twice = [*fast, sample("a", "fast", [step(0, 0), step(2, 2)], wall_s=8.0, repeat=1)]
    assert intervals.speedup(greedy, twice) == intervals.speedup(greedy, fast)
    lucky = sample("a", "fast", [step(0, 0)], wall_s=10.0)
    base = [replace(lucky, wall_s=10.0), replace(lucky, wall_s=100.0, repeat=1)]
    assert intervals.speedup(base, [lucky]) == intervals.Interval(1.0)
    assert intervals.pooled([], part=metrics.calls_part) is None


def test_a_macro_speedup_weighs_prompts_alike():
    greedy, fast = greedy_and_fast()
    # Two prompts: 2 s per token against 1 s, and 2 s per token against 2/3 s.
    macro = intervals.macro_speedup(greedy, fast)
    assert macro.value == pytest.approx(math.sqrt(2 * 3))
    assert (macro.low, macro.high) == pytest.approx((2, 3))
    assert intervals.macro_speedup(greedy, []) is None
    assert intervals.macro_speedup(greedy, fast[:1]) == intervals.Interval(pytest.approx(2))


def test_scores_have_intervals():
    samples = [sample(e, "x", []) for e in "abcdefghij"]
    passed = {s.key: {"passed": float(i < 7)} for i, s in enumerate(samples)}
    found = scoring.score_intervals(samples, passed)["pass@1"]
    # Wilson's interval of 7 in 10, worked out by its formula with z = 1.96.
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.3968, 0.8922), abs=1e-3)
    graded = {s.key: {"rouge": i / 10} for i, s in enumerate(samples)}
    found = scoring.score_intervals(samples, graded)["rouge"]
    assert found.value == pytest.approx(0.45) and 0.2 < found.low < 0.45 < found.high < 0.7
    assert scoring.score_intervals(samples, {}) == {}
    for name, high in (("rouge2", 0.0), ("exact_match", pytest.approx(0.2775, abs=1e-3))):
        none = {s.key: {name: 0.0} for s in samples}
        assert scoring.score_intervals(samples, none)[name].high == high


def test_positions_say_how_many_steps_reached_them():
    assert metrics.tries_per_position(STEPS) == [3, 3, 2, 2]
    assert metrics.tries_per_position([]) == []


def test_latency_and_energy():
    both = [sample("a", "x", STEPS, wall_s=9.0), sample("b", "x", STEPS, wall_s=3.0)]
    assert metrics.e2e_latency_s(both) == pytest.approx(6)
    assert metrics.e2e_latency_s([]) is metrics.energy_per_token_j(both) is None
    known = Sample("c", "x", 0, 0, 0, new_tokens=(1, 2, 3, 4), energy_j=10.0)
    assert metrics.energy_per_token_j([*both, known]) == pytest.approx(2.5)


def test_repetition_rate():
    assert metrics.repetition_rate([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert metrics.repetition_rate([7] * 10) == pytest.approx(6 / 7)
    assert metrics.repetition_rate(range(20)) == 0
    assert metrics.repetition_rate([1, 2, 3]) is None
    mixed = [sample("a", "x", [], tokens=(7,) * 10), sample("b", "x", [], tokens=(1,))]
    assert metrics.mean_repetition_rate(mixed) == pytest.approx(6 / 7)


def test_unequal_sees_different_tokens_and_truncation():
    greedy = [sample(e, "greedy", [], tokens=(1, 2, 3)) for e in "abc"]
    others = [
        sample("a", "x", [], tokens=(1, 2, 3)),
        sample("b", "x", [], tokens=(1, 2)),
        sample("c", "x", [], tokens=(1, 2, 4)),
        sample("d", "x", [], tokens=(9,)),
    ]
    assert metrics.unequal(greedy, others) == 2
    assert metrics.unequal([], others) is None


def test_pass_at_1_is_the_mean_over_problems():
    samples = [sample(e, "x", [], repeat=r) for e in "ab" for r in (0, 1)]
    passed = dict(zip([s.key for s in samples], [1.0, 0.0, 1.0, 1.0], strict=True))
    scores = {key: {"passed": value} for key, value in passed.items()}
    (found,) = scoring.score_intervals(samples, scores).items()
    assert found[0] == "pass@1" and found[1].value == pytest.approx(0.75)
    assert found[1].low < 0.75 < found[1].high


def test_the_pairs_own_draft_cost_counts_and_is_told():
    sampled = [sample("a", "fast", STEPS)]
    run = {**RUN, "decoders": ["fast"], "model": {**RUN["model"], "draft_cost": 0.5}}
    found = summarise(run, sampled, {})
    usual = summarise({**RUN, "decoders": ["fast"]}, sampled, {})
    assert found["decoders"]["fast"]["calls_per_token"] == pytest.approx((4 + 0.5 * 10) / 9)
    assert found["decoders"]["fast"]["calls_interval"]["value"] == pytest.approx(1.0)
    assert usual["decoders"]["fast"]["calls_per_token"] == pytest.approx((4 + 0.176 * 10) / 9)
    assert "(target calls + 0.5 x draft calls)" in " ".join(legend([found]).split())
    assert "(target calls + 0.176 x draft calls)" in " ".join(legend([usual]).split())
    assert "the pair's cost x draft" in " ".join(legend([found, usual]).split())


def test_a_pairs_draft_cost_is_that_of_the_costs_or_the_bytes_of_its_weights():
    small, large = CachedModel(tiny_llama(0)), CachedModel(tiny_llama(0, layers=3))
    share = draft_cost(None, [large, small])
    assert 0.3 < share < 1 and draft_cost(None, [small, small]) == 1
    assert draft_cost(0.25, [large, small]) == 0.25 and draft_cost(None, [large]) is None
    costs = Costs(Surface.flat({1: 10.0, 64: 12.0}), Surface.constant(3.0))
    assert draft_cost(None, [large, small], costs) == pytest.approx(0.3)
    assert draft_cost(None, [large, small], replace(costs, draft=None)) == share
