"""When speculation pays: closed forms against simulation, and the one line that says why not."""

import random
from functools import partial

import pytest
from measured import sample, step

from ouroboros.costs import Costs, Surface
from ouroboros.tuning.break_even import (
    agreement_for,
    chain_tokens,
    expected_speedup,
    suppose,
    why_slower,
)


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


@pytest.mark.parametrize("gamma", [1, 2, 5, 12])
@pytest.mark.parametrize("draft", [0.05, 0.18, 0.5, 1.2])
def test_the_agreement_that_a_speedup_needs_against_brute_force(gamma, draft):
    def gain(agreement: float) -> float:
        return expected_speedup(agreement, gamma, draft=draft, host=0.02)

    worth = [i / 10000 for i in range(10001) if gain(i / 10000) >= 1.0]
    found = agreement_for(gain, 1.0)
    assert found is None if not worth else found == pytest.approx(worth[0], abs=1e-4)


def test_the_agreement_is_the_inverse_of_the_tokens():
    gain = partial(chain_tokens, gamma=6)
    for agreement in (0.0, 0.2, 0.9, 1.0):
        assert agreement_for(gain, gain(agreement)) == pytest.approx(agreement, abs=1e-9)
    assert agreement_for(gain, 0.9) == 0.0 and agreement_for(gain, 7.1) is None


def test_phrases_and_free_tokens():
    assert expected_speedup(1.0, 6, draft=0.2) == pytest.approx(7 / 2.2)
    phrases = {"draft": 0.2, "tokens_per_draft_call": 3.0}
    assert expected_speedup(1.0, 6, **phrases, free=1.0) == pytest.approx(8 / 1.4)
    assert expected_speedup(1.0, 1, **phrases) == pytest.approx(2 / 1.2)


def test_the_best_gamma_grows_with_the_agreement():
    costs = Costs(Surface.constant(10.0), Surface.constant(1.7))
    table, facts = suppose(costs, [0.5, 0.7, 0.9], gammas=range(1, 30), published=1.5)
    assert facts["draft"] == pytest.approx(0.17) and 0 < facts["needs"] < 0.5
    assert list(table.gamma) == sorted(set(table.gamma))
    for row in table.itertuples():
        every = [expected_speedup(row.agreement, gamma, draft=0.17) for gamma in range(1, 30)]
        assert row.speculative == pytest.approx(max(every))
        assert row.ouroboros > row.speculative
    assert suppose(costs, [0.5], published=99)[1]["needs"] is None


GREEDY = [sample(name, "greedy", [step(0, 0, times=(0, 1.0, 0))] * 9, wall_s=9.0) for name in "ab"]


def slow(times, *, wall_s: float, first=(0, 1.0, 0)):
    steps = [step(5, 1, draft_calls=5, times=times if at else first) for at in range(5)]
    return [sample(name, "speculative", steps, wall_s=wall_s) for name in "ab"]


def test_why_a_decoder_is_slower_in_one_line():
    line = why_slower("speculative", GREEDY, slow((1.5, 1.0, 0.1), wall_s=11.4))
    assert line.startswith("speculative is slower than greedy (0.88x): a step costs 2.60 greedy")
    assert "a draft of 5.0 tokens 1.50" in line and "58 % of the time is drafting" in line
    assert "gives 2.00 tokens; it breaks even at an acceptance of 0.64 per token, here 0.51" in line
    assert "\n" not in line


def test_a_step_that_costs_more_than_any_draft_can_give():
    line = why_slower("speculative", GREEDY, slow((6.0, 1.0, 0.0), wall_s=30.0))
    assert "a draft of 5.0 tokens cannot give 7.00" in line


def test_a_slow_prefill_is_named():
    line = why_slower("speculative", GREEDY, slow((0.5, 1.0, 0.0), wall_s=20.0, first=(13, 1, 0)))
    assert "only its first step is, 14.0 times greedy's" in line


def test_a_faster_decoder_needs_no_reason():
    assert why_slower("speculative", GREEDY, slow((0.1, 1.0, 0.0), wall_s=5.0)) is None
    assert why_slower("speculative", [], []) is None
    assert why_slower("speculative", GREEDY, []) is None
