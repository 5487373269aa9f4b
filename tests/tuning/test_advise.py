"""Predicted seconds against sums by hand; break-even points against simulation."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from measured import chain, sample, step

from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.costs import CostModel, Costs, Surface
from ouroboros.decoder_factory import decoder_config
from ouroboros.tuning import advise as advising
from ouroboros.tuning.advise import Prediction, acceptance_for, break_even, chain_tokens

COSTS = Costs(
    Surface.flat({1: 10.0, 5: 14.0}), Surface.constant(2.0), {"": 1.0, PLAIN: 0.0}, prefill_ms=30.0
)


def test_a_step_is_verification_drafting_and_host_and_the_first_holds_the_prefill():
    found = CostModel(COSTS).predict(sample("a", "fast", [chain(4, 2), chain(2, 2)]))
    first, second = found.steps
    assert second.verify_s == pytest.approx(0.012) and second.draft_s == pytest.approx(0.004)
    assert second.host_s == pytest.approx(0.001)
    assert first.verify_s == pytest.approx(0.014 + 0.030)
    assert first.draft_s == pytest.approx(0.008 + 0.030 * 2 / 10)
    assert found.ttft_s == pytest.approx(0.059) and found.wall_s == pytest.approx(0.076)


def test_a_branching_first_tree_after_a_long_prompt_is_a_call_of_its_own():
    branching = step(2, 1, scored=5, times=(0, 0, 0))
    short = CostModel(COSTS).predict(sample("a", "lookahead", [branching]))
    long = CostModel(COSTS).predict(
        replace(sample("a", "lookahead", [branching]), prompt_tokens=200)
    )
    assert short.wall_s == pytest.approx(0.014 + 0.030 + 0.001)
    assert long.wall_s == pytest.approx(short.wall_s + 0.010)


def test_a_prediction_is_the_bench_s_own_metrics():
    plain = [sample(name, PLAIN, [chain(0, 0)] * 6) for name in "ab"]
    ours = [sample(name, "fast", [chain(4, 2), chain(4, 2)]) for name in "ab"]
    found = Prediction.of(plain, ours, COSTS, {"gamma": 4})
    ours_ms = 2 * (14 + 8 + 1) + 30 + 6
    assert found.speedup.value == pytest.approx((6 * 10 + 30) / ours_ms)
    predicted = [CostModel(COSTS).predict(one) for one in ours]
    assert found.tokens_per_s == pytest.approx(METRICS["output_throughput"](predicted))
    assert found.tokens_per_step == 3 and found.settings == {"gamma": 4} and found.failed is None
    later = [replace(one, steps=one.steps[1:]) for one in predicted]
    shares = {name: METRICS[f"{name}_share"](later) for name in ("draft", "verify", "host")}
    assert found.shares == pytest.approx(shares)
    assert found.why is None


def test_what_the_costs_do_not_cover_is_said():
    found = Prediction.of([], [sample("a", "fast", [chain(9, 2)])], COSTS)
    assert "costs cover 1 to 5" in found.failed and found.tokens_per_s == 0


def simulated(agreement: float, gamma: int, steps: int = 20000) -> float:
    """Tokens per step of chains whose tokens agree independently."""
    draw, tokens = random.Random(0), 0
    for _ in range(steps):
        right = 0
        while right < gamma and draw.random() < agreement:
            right += 1
        tokens += right + 1
    return tokens / steps


@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [1, 5])
def test_tokens_of_a_chain(agreement, gamma):
    assert chain_tokens(agreement, gamma) == pytest.approx(simulated(agreement, gamma), rel=0.02)


def test_the_agreement_is_the_inverse_of_the_tokens():
    for agreement in (0.0, 0.2, 0.9, 1.0):
        assert acceptance_for(chain_tokens(agreement, 6), 6) == pytest.approx(agreement, abs=1e-9)
    assert acceptance_for(0.9, 6) == 0.0 and acceptance_for(7.1, 6) is None


GREEDY = [sample(name, "greedy", [step(0, 0, times=(0, 1.0, 0))] * 9, wall_s=9.0) for name in "ab"]


@pytest.mark.parametrize(
    ("times", "first", "says"),
    [
        (
            (1.5, 1.0, 0.1),
            0,
            "a step costs 2.60 greedy steps (a draft of 5.0 tokens 1.50, a target",
        ),
        ((1.5, 1.0, 0.1), 0, "gives 2.00 tokens; it breaks even at an acceptance rate of 0.64"),
        ((1.5, 1.0, 0.1), 0, "0.64; here it is 0.51; 58 % of the time is drafting"),
        ((6.0, 1.0, 0.0), 0, "a draft of 5.0 tokens can never give 7.00 tokens"),
        ((0.5, 1.0, 0.0), 13, "only its first step is slower than greedy's, 14.0 times"),
    ],
)
def test_why_a_decoder_is_slower_in_one_line(times, first, says):
    steps = [step(5, 1, draft_calls=5, times=times if at else (first, 1, 0)) for at in range(5)]
    ours = [sample(name, "speculative", steps, wall_s=30.0) for name in "ab"]
    line = break_even(GREEDY, ours)[2]
    assert says in line and "\n" not in line


def test_a_first_step_without_a_draft_model_reads_no_prompt_twice():
    steps = [step(5, 1, times=(0, 1.0 if at else 13.0, 0)) for at in range(5)]
    line = break_even(GREEDY, [sample("a", "prompt_lookup", steps, wall_s=30.0)])[2]
    assert "only its first step is slower than greedy's, 13.0 times; later steps" in line


def test_greedy_is_faster_from_the_size_after_the_last_that_pays():
    def together(name, config, size):
        seconds = 1.0 if name == PLAIN else 0.5 if size == 2 else 3.0
        one = replace(step(0, 0, times=(0, seconds, 0)), rows=size)
        return [sample("a", name, [one] * 3)]

    evidence = {"greedy": SimpleNamespace(together=together)}
    evidence["fast"] = evidence["greedy"]
    table, slower = advising.batch_table(evidence, dict.fromkeys(evidence), [4, 1, 2])
    assert table[table.decoder == "fast"].speedup.tolist() == pytest.approx([1 / 3, 1 / 3, 2])
    assert slower == {"greedy": None, "fast": 4}


def test_the_speed_of_a_batch_is_that_of_full_batches():
    """At the end fewer sequences are left, with which drafts pay more: they hid that greedy is
    faster."""

    def together(name, config, size):
        full, last = (1.0, 1.0) if name == PLAIN else (4.0, 0.1)
        steps = [replace(step(0, 0, times=(0, full, 0)), rows=2)] * 2
        alone = [replace(step(0, 0, times=(0, last, 0)), rows=1)] * 9
        return [sample("a", name, steps), sample("b", name, steps + alone)]

    evidence = dict.fromkeys(("greedy", "fast"), SimpleNamespace(together=together))
    table, slower = advising.batch_table(evidence, dict.fromkeys(evidence), [2])
    fast = table.set_index("decoder").loc["fast"]
    assert fast[["tokens/s", "tokens/s/user", "speedup"]].tolist() == [0.25, 0.125, 0.25]
    assert slower == {"greedy": None, "fast": 2}


def test_without_later_steps_there_is_no_reason():
    assert break_even([], [])[2] is None and break_even(GREEDY, [])[2] is None


@pytest.mark.parametrize("name", ["suffix_hybrid", "prompt_lookup_adaptive"])
def test_a_decoder_is_searched_over_its_own_settings(monkeypatch, name):
    """Not over those of the decoder whose class it shares."""
    spaces: list[dict] = []
    monkeypatch.setattr(advising, "predict", lambda *_: Prediction({}))
    monkeypatch.setattr(advising, "replace", lambda one, **_: one)
    monkeypatch.setattr(advising, "search", lambda _, space, **__: spaces.append(space) or {})
    evidence = SimpleNamespace(recorded=SimpleNamespace(runs=[]))
    advising.advise(evidence, {name: decoder_config(name)})
    assert spaces == [advising.SPACES[name]]
