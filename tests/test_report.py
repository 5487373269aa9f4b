"""Every metric on traces worked out by hand, and a whole report."""

import json
import math

import pytest

from ouroboros.bench import intervals, metrics
from ouroboros.bench.provenance import fast_dtype, git_state, identity, provenance, without_paths
from ouroboros.bench.report import headline, make_report, summarise, tables, to_markdown
from ouroboros.bench.sample import Sample
from ouroboros.bench.store import SAMPLES, SCORES, ResultsFolder
from ouroboros.trace import StepRecord


def step(drafted: int, accepted: int, *, new=None, draft_calls=0, scored=None, times=(0, 1, 0)):
    new = accepted + 1 if new is None else new
    sources = (*["draft"] * accepted, "target")[:new]
    scored = drafted + 1 if scored is None else scored
    return StepRecord(drafted, scored, accepted, new, draft_calls, sources, *times)


def sample(example, decoder, steps, *, tokens=None, wall_s=10.0, ttft_s=1.0, repeat=0, error=None):
    count = sum(s.new for s in steps)
    tokens = tuple(range(count)) if tokens is None else tokens
    return Sample(
        example,
        decoder,
        repeat,
        0,
        5,
        tokens,
        "",
        "length",
        tuple(steps),
        wall_s,
        ttft_s,
        None,
        error,
    )


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


def greedy_and_fast():
    greedy = [
        sample("a", "greedy", [step(0, 0)] * 4, wall_s=8.0, ttft_s=2.0),
        sample("b", "greedy", [step(0, 0)] * 6, wall_s=12.0, ttft_s=2.0),
    ]
    fast = [
        sample("a", "fast", [step(0, 0), step(2, 2)], wall_s=4.0, ttft_s=2.0),
        sample("b", "fast", [step(0, 0), step(4, 4)], wall_s=4.0, ttft_s=2.0),
    ]
    return greedy, fast


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


RUN = {
    "task": {"name": "toy", "version": "1", "licence": "none", "prompts": 2},
    "model": {
        "name": "reference",
        "standin": {"target": "cpu-target", "draft": "cpu-draft"},
        "dtype": "float32",
        "device": "cpu",
    },
    "decoders": ["greedy", "fast", "hf_greedy"],
    "sampling": {"temperature": 0.0},
    "max_new": 6,
    "samples_wanted": 6,
    "status": "finished",
    "resumed": 0,
    "provenance": {
        "machine": {"cpu": "Toy CPU", "cores": 2, "threads": 1, "gpus": []},
        "versions": {"torch": "2", "transformers": "5"},
    },
}


def test_a_whole_report(tmp_path):
    greedy, fast = greedy_and_fast()
    failed = sample("b", "hf_greedy", [], error="ValueError: too long", wall_s=0.0, ttft_s=None)
    folder = ResultsFolder(tmp_path)
    folder.open_run(RUN, identity="x")
    folder.save_run(folder.load_run(), status="finished")
    with folder.appending(SAMPLES) as lines:
        for row in [*greedy, *fast, failed]:
            lines.append(row.to_dict())
    with folder.appending(SCORES) as lines:
        for row in fast:
            example, decoder, repeat = row.key
            key = {"example": example, "decoder": decoder, "repeat": repeat}
            lines.append({**key, "scores": {"passed": 1.0}})
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
    assert headline(summary)["fast"]["latency_speedup"] == 2.5


def test_repetition_and_inequality_are_marked():
    rows = [
        sample("a", "greedy", [step(0, 0)] * 9, tokens=(7,) * 9),
        sample("a", "fast", [step(0, 0)] * 9, tokens=(7,) * 8 + (6,)),
    ]
    speed, _ = tables(summarise({**RUN, "decoders": ["greedy", "fast"]}, rows, {}))
    assert "83 % (!)" in speed and "1 of 1 (!)" in speed


def test_an_empty_run_still_reports():
    summary = summarise(RUN, [], {})
    assert "greedy" in to_markdown(summary)
    assert not any(isinstance(v, float) and math.isnan(v) for v in summary["decoders"].values())


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
