"""Speedups and their 95 % intervals over prompts."""

import math
from dataclasses import replace

import pytest
from measured import FAST, GREEDY, THIRD, sample, step

from ouroboros.bench.metrics import METRICS, intervals
from ouroboros.bench.metrics.intervals import Interval, pooled
from ouroboros.bench.metrics.sample import sample_frame


def speedup(baseline, samples, *amount, **options):
    return intervals.speedup(sample_frame(baseline), sample_frame(samples), *amount, **options)


def test_speedups_are_paired_ratios_of_seconds_per_token():
    greedy, fast = [*GREEDY, THIRD[0]], [*FAST, THIRD[1]]
    whole = speedup(greedy, fast)
    assert whole.value == pytest.approx((30 / 15) / (12 / 15))
    assert whole.low == pytest.approx(2.0) and whole.high == pytest.approx(3.0)
    assert METRICS["latency_speedup"](fast, greedy=greedy) == whole
    after = speedup(GREEDY, FAST, "decode_s", "decode_tokens")
    assert after.value == pytest.approx((16 / 8) / (4 / 8))
    same = speedup(greedy, greedy)
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))


def test_only_prompts_and_repeats_that_both_finished_count():
    assert speedup(GREEDY, FAST[:1]) == Interval(pytest.approx(2.0), prompts=1)
    assert speedup(GREEDY, []) is None
    twice = [*FAST, sample("a", "fast", [step(0, 0), step(2, 2)], wall_s=8.0, repeat=1)]
    assert speedup(GREEDY, twice) == speedup(GREEDY, FAST)
    lucky = sample("a", "fast", [step(0, 0)], wall_s=10.0)
    base = [replace(lucky, wall_s=10.0), replace(lucky, wall_s=100.0, repeat=1)]
    assert speedup(base, [lucky]) == Interval(1.0, prompts=1)
    assert pooled(sample_frame([]), "calls") is None


def test_completions_that_differ_are_compared_by_time_per_token():
    """Greedy takes 8 s for 4 tokens and 13 s for 13, the decoder 4 s for 4 and 32 s for 128."""
    base = [*GREEDY, sample("c", "greedy", [step(0, 0)] * 13, wall_s=13.0)]
    ours = [FAST[0], sample("c", "fast", [step(7, 7)] * 16, wall_s=32.0)]
    expected = (21 / 17) / (36 / 132)
    speedup_of_two = Interval(pytest.approx(expected), prompts=2)
    assert METRICS["latency_speedup"](ours, greedy=base) == speedup_of_two
    assert METRICS["latency_vs_ouroboros"](base, ouroboros=ours).value == pytest.approx(expected)
    assert METRICS["equal_speedup"](ours, greedy=base) == Interval(2.0, prompts=1)
    assert METRICS["equal_speedup"](ours[1:], greedy=base) is None
    assert METRICS["worst_speedup"](ours, greedy=base) == 2.0
    assert METRICS["slower_share"]([replace(FAST[0], wall_s=10.0), FAST[1]], greedy=GREEDY) == 0.5
    assert METRICS["worst_speedup"](ours, greedy=[]) is None
    assert METRICS["unequal"](ours, greedy=base) == 1


def test_a_macro_speedup_weighs_prompts_alike():
    # Two prompts: 2 s per token against 1 s, and 2 s per token against 2/3 s.
    assert speedup(GREEDY, FAST, macro=True).value == pytest.approx(math.sqrt(2 * 3))
    macro = speedup([*GREEDY, THIRD[0]], [*FAST, THIRD[1]], macro=True)
    assert macro.value == pytest.approx((2 * 3 * 2.5) ** (1 / 3))
    assert (macro.low, macro.high) == pytest.approx((2, 3))
    assert speedup(GREEDY, [], macro=True) is None
    again = [replace(one[0], repeat=1) for one in (GREEDY, FAST)]
    twice = speedup([*GREEDY, again[0]], [*FAST, again[1]], macro=True)
    assert twice == Interval(pytest.approx(math.sqrt(2 * 3)), prompts=2), "repeats are added up"


@pytest.mark.parametrize(
    ("interval", "word", "text"),
    [
        (Interval(1.1, 0.9, 2.0), "inconclusive", "1.10x [0.90, 2.00]"),
        (Interval(0.5, 0.4, 0.9), "behind", "0.50x [0.40, 0.90]"),
        (Interval(9.0), "inconclusive", "9.00x"),
        (Interval(1.1, 1.01, 2.0, 8), "ahead", "1.10x [1.01, 2.00]"),
        (Interval(1.1, 1.01, 2.0, 7), "under 8 prompts", "1.10x [1.01, 2.00]"),
        (Interval(1.1, 1.01, 2.0, 2), "under 8 prompts", "1.10x (n = 2)"),
    ],
)
def test_a_word_needs_the_whole_interval_and_no_width_is_not_printed(interval, word, text):
    assert interval.significance == word
    assert interval.text(unit="x") == text
