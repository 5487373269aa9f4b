"""Speedups and their 95 % intervals over prompts."""

import math
from dataclasses import replace

import pytest
from measured import FAST, GREEDY, sample, step

from ouroboros.bench.metrics import METRICS, intervals
from ouroboros.bench.metrics.intervals import Interval, pooled
from ouroboros.bench.metrics.sample import sample_frame


def speedup(baseline, samples, *amount, **options):
    return intervals.speedup(sample_frame(baseline), sample_frame(samples), *amount, **options)


def test_speedups_are_paired_ratios_of_seconds_per_token():
    whole = speedup(GREEDY, FAST)
    assert whole.value == pytest.approx((20 / 10) / (8 / 10))
    assert whole.low == pytest.approx(2.0) and whole.high == pytest.approx(3.0)
    assert METRICS["latency_speedup"](FAST, greedy=GREEDY) == whole
    after = speedup(GREEDY, FAST, "decode_s", "decode_tokens")
    assert after.value == pytest.approx((16 / 8) / (4 / 8))
    same = speedup(GREEDY, GREEDY)
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


def test_texts_of_other_lengths_give_no_speedup():
    """128 tokens against 13 are no speedup of 2.75; the equal pair alone is compared."""
    base = [*GREEDY, sample("c", "greedy", [step(0, 0)] * 13, wall_s=13.0)]
    ours = [FAST[0], sample("c", "fast", [step(7, 7)] * 16, wall_s=32.0)]
    assert speedup(base, ours).value > 3 and speedup(base, ours, equal=True).value == 2.0
    assert METRICS["latency_speedup"](ours, greedy=base).prompts == 1
    assert METRICS["latency_speedup"](ours[1:], greedy=base) is None
    assert METRICS["latency_speedup"](ours[1:], greedy=base, in_law=True).value == pytest.approx(4)
    assert (
        METRICS["slower_share"](ours, greedy=base) == 0
        and METRICS["unequal"](ours, greedy=base) == 1
    )


def test_slow_prompts_do_not_hide_in_the_mean():
    slow = [replace(FAST[0], wall_s=10.0), FAST[1]]
    assert METRICS["latency_speedup"](slow, greedy=GREEDY).value > 1
    assert METRICS["slower_share"](slow, greedy=GREEDY) == 0.5
    assert METRICS["worst_speedup"](slow, greedy=GREEDY) == pytest.approx(0.8)
    assert METRICS["worst_speedup"](slow, greedy=[]) is None


def test_a_macro_speedup_weighs_prompts_alike():
    # Two prompts: 2 s per token against 1 s, and 2 s per token against 2/3 s.
    macro = speedup(GREEDY, FAST, macro=True)
    assert macro.value == pytest.approx(math.sqrt(2 * 3))
    assert (macro.low, macro.high) == pytest.approx((2, 3))
    assert speedup(GREEDY, [], macro=True) is None
    assert speedup(GREEDY, FAST[:1], macro=True) == Interval(pytest.approx(2), prompts=1)


@pytest.mark.parametrize(
    ("interval", "word", "text"),
    [
        (Interval(1.1, 1.01, 2.0), "ahead", "1.10x [1.01, 2.00]"),
        (Interval(1.1, 0.9, 2.0), "inconclusive", "1.10x [0.90, 2.00]"),
        (Interval(0.5, 0.4, 0.9), "behind", "0.50x [0.40, 0.90]"),
        (Interval(9.0), "inconclusive", "9.00x"),
        (Interval(1.0, 1.0, 1.0), "inconclusive", "1.00x"),
        (Interval(1.1, 1.01, 2.0, 8), "ahead", "1.10x [1.01, 2.00]"),
        (Interval(1.1, 1.01, 2.0, 7), "under 8 prompts", "1.10x [1.01, 2.00]"),
    ],
)
def test_a_word_needs_the_whole_interval_and_no_width_is_not_printed(interval, word, text):
    assert interval.significance == word
    assert interval.text(unit="x") == text


def test_repeats_of_a_prompt_are_added_up():
    """Two of one prompt at half the time and one of another at a third: two ratios."""
    rows = [("a", 0, 4.0), ("a", 1, 8.0), ("b", 0, 9.0)]
    slow = [sample(prompt, "x", [step(0, 0)], repeat=n, wall_s=wall) for prompt, n, wall in rows]
    fast = [replace(one, wall_s=one.wall_s / (2 if one.example == "a" else 3)) for one in slow]
    found = speedup(slow, fast, macro=True)
    assert found.value == pytest.approx(6**0.5) and found.prompts == 2
    assert speedup(slow, fast).value == pytest.approx(21 / 9), "a prompt weighs as its repeats"
