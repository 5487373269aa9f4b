"""Every metric on traces worked out by hand, and a whole report."""

import json
import math
from dataclasses import dataclass

import pytest
from measured import RUN, greedy_and_fast, sample, step, write_run

from ouroboros.bench import intervals, metrics
from ouroboros.bench.provenance import fast_dtype, git_state, identity, provenance, without_paths
from ouroboros.bench.report import headline, make_report, summarise, tables, to_markdown
from ouroboros.bench.sample import Sample
from ouroboros.bench.store import ResultsFolder
from ouroboros.bench.tables import group_frame, published_frame, speed_frame

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


def test_speedup_counts_only_prompts_that_both_finished():
    greedy, fast = greedy_and_fast()
    assert intervals.speedup(greedy, fast[:1]) == intervals.Interval(pytest.approx(2.0))
    assert intervals.speedup(greedy, []) is None
    twice = [*fast, sample("a", "fast", [step(0, 0), step(2, 2)], wall_s=8.0, repeat=1)]
    assert intervals.speedup(greedy, twice).value == pytest.approx((20 / 10) / (16 / 14))


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
    found = intervals.score_intervals(samples, passed)["pass@1"]
    # Wilson's interval of 7 in 10, worked out by its formula with z = 1.96.
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.3968, 0.8922), abs=1e-3)
    graded = {s.key: {"rouge": i / 10} for i, s in enumerate(samples)}
    found = intervals.score_intervals(samples, graded)["rouge"]
    assert found.value == pytest.approx(0.45) and 0.2 < found.low < 0.45 < found.high < 0.7
    assert intervals.score_intervals(samples, {}) == {}


def test_positions_say_how_many_steps_reached_them():
    assert metrics.tries_per_position(STEPS) == [3, 3, 2, 2]
    assert metrics.tries_per_position([]) == []


def test_latency_and_energy():
    both = [sample("a", "x", STEPS, wall_s=9.0), sample("b", "x", STEPS, wall_s=3.0)]
    assert metrics.e2e_latency_s(both) == pytest.approx(6)
    assert metrics.e2e_latency_s([]) is metrics.energy_per_token_j(both) is None
    known = Metered("c", "x", 0, 0, 0, new_tokens=(1, 2, 3, 4), energy_j=10.0)
    assert metrics.energy_per_token_j([*both, known]) == pytest.approx(2.5)


@dataclass(frozen=True)
class Metered(Sample):
    energy_j: float | None = None
    group: str = ""


def test_groups_have_their_own_speedups():
    greedy, fast = greedy_and_fast()
    rows = [
        Metered(**{**vars(one), "group": group})
        for pair in (greedy, fast)
        for one, group in zip(pair, ("math", "code"), strict=True)
    ]
    frame = group_frame(summarise(RUN, rows, {}))
    assert frame.set_index("group")["fast"].to_dict() == {"math": "2.00x", "code": "3.00x"}
    assert group_frame(summarise(RUN, [*greedy, *fast], {})).empty


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
    assert metrics.task_scores(samples, scores) == {"pass@1": pytest.approx(0.75)}
    assert metrics.task_scores(samples, {}) == {}


def test_a_whole_report(tmp_path):
    greedy, fast = greedy_and_fast()
    failed = sample("b", "hf_greedy", [], error="ValueError: too long", wall_s=0.0, ttft_s=None)
    scores = {row.key: {"passed": 1.0} for row in fast}
    folder = write_run(tmp_path, RUN, [*greedy, *fast, failed], scores)
    summary = make_report(folder)
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert (tmp_path / "speedup.png").stat().st_size > 5000
    row = summary["decoders"]["fast"]
    assert row["latency_speedup"]["value"] == pytest.approx(2.5)
    assert row["tokens_per_target_call"] == pytest.approx(2.5)
    assert row["scores"] == {"pass@1": 1.0}
    assert row["latency_speedup_vs_hf"] is None
    assert summary["decoders"]["hf_greedy"]["failed"] == 1
    text = (tmp_path / "summary.md").read_text()
    assert "stand-in" in text.splitlines()[0] and "batch size 1" in text.splitlines()[0]
    assert "Toy CPU" in text.splitlines()[0]
    assert "**Incomplete**: 5 of 6 samples." in text
    assert "hf_greedy: 1 failed: ValueError: too long" in text
    assert row["score_intervals"]["pass@1"]["low"] > 0.3
    assert headline(summary)["fast"]["latency_speedup"] == 2.5


def test_repetition_and_inequality_are_marked():
    rows = [
        sample("a", "greedy", [step(0, 0)] * 9, tokens=(7,) * 9),
        sample("a", "fast", [step(0, 0)] * 9, tokens=(7,) * 8 + (6,)),
    ]
    speed, _ = tables(summarise({**RUN, "decoders": ["greedy", "fast"]}, rows, {}))
    assert "83 % (!)" in speed and "1 of 1" in speed


def test_an_empty_run_still_reports():
    summary = summarise(RUN, [], {})
    assert "greedy" in to_markdown(summary)
    assert not any(isinstance(v, float) and math.isnan(v) for v in summary["decoders"].values())


def test_the_title_counts_what_was_measured():
    greedy, fast = greedy_and_fast()
    bad = sample("b", "fast", [], error="RuntimeError: x", wall_s=0.0, ttft_s=None)
    short = summarise(RUN, [greedy[0], fast[0], bad], {})
    assert "toy, 1 of 2 prompts" in short["title"] and short["incomplete"]
    speed = speed_frame(short).set_index("decoder")
    assert speed.loc["fast", "samples"] == "1 (1 failed)"
    assert speed.loc["fast", "latency speedup"] == "2.00x"
    whole = summarise({**RUN, "samples_wanted": 4}, [*greedy, *fast], {})
    assert "toy, 2 prompts" in whole["title"] and not whole["incomplete"]
    stopped = {**RUN, "samples_wanted": 4, "status": "interrupted"}
    assert "'interrupted'" in to_markdown(summarise(stopped, [*greedy, *fast], {}))


def test_published_numbers_stand_beside_the_measured_ones():
    published = {
        "source": "arXiv 2402.13720",
        "hardware": "A100",
        "tokens_per_s": {"greedy": 15.6, "fast": 62.4, "absent": 31.2},
    }
    greedy, fast = greedy_and_fast()
    summary = summarise({**RUN, "published": published}, [*greedy, *fast], {})
    rows = published_frame(summary).set_index("decoder")
    assert rows.loc["fast", "published speedup"] == "4.00x"
    assert rows.loc["fast", "measured speedup"].startswith("2.50x")
    assert rows.loc["fast", "measured / published"] == "0.62"
    assert rows.loc["absent", "measured speedup"] == rows.loc["hf_greedy", "published speedup"]
    text = to_markdown(summary)
    assert "on A100. Measured (a stand-in): on Toy CPU" in text
    own = {**RUN["model"], "standin": None, "target": "reference/target"}
    rehearsal = summarise({**RUN, "model": own, "published": published}, fast, {})
    assert "(a rehearsal)" in rehearsal["title"]
    assert "rehearsal" not in summarise({**RUN, "model": own}, fast, {})["title"]


def test_a_verdict_gets_a_column():
    greedy, fast = greedy_and_fast()
    summary = summarise(RUN, [*greedy, *fast], {})
    assert "lossless" not in speed_frame(summary)
    summary["decoders"]["fast"]["verdict"] = "1 tie of 2"
    assert list(speed_frame(summary)["lossless"]) == ["-", "1 tie of 2", "-"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a results folder"):
        make_report(ResultsFolder(tmp_path))


def test_provenance_names_versions_and_machine_but_no_host():
    import platform

    found = provenance()
    assert found["versions"]["torch"] and found["machine"]["cores"] >= 1
    assert json.loads(json.dumps(found)) == found
    assert platform.node() not in json.dumps(found)
    assert git_state(ResultsFolder("/").path) is None
    assert str(fast_dtype("cpu")) in ("torch.bfloat16", "torch.float32")


def test_identity_and_paths(tmp_path):
    assert identity({"a": 1, "b": 2}, "x") == identity({"b": 2, "a": 1}, "x")
    assert identity({"a": 1}) != identity({"a": 2})
    (tmp_path / "pair").mkdir()
    assert without_paths({"m": [str(tmp_path / "pair"), "01-ai/Yi-34B"]}) == {
        "m": ["pair", "01-ai/Yi-34B"]
    }
    assert without_paths("cannot read /etc/x/y: denied, see https://a.b/c/d") == (
        "cannot read y: denied, see https://a.b/c/d"
    )
