"""When speculation pays: closed forms against simulation, and the one line that says why not."""

import random
from functools import partial

import pytest
from measured import sample, step

from ouroboros.tuning.break_even import agreement_for, chain_tokens, why_slower


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
    gain = partial(chain_tokens, gamma=6)
    for agreement in (0.0, 0.2, 0.9, 1.0):
        assert agreement_for(gain, gain(agreement)) == pytest.approx(agreement, abs=1e-9)
    assert agreement_for(gain, 0.9) == 0.0 and agreement_for(gain, 7.1) is None


GREEDY = [sample(name, "greedy", [step(0, 0, times=(0, 1.0, 0))] * 9, wall_s=9.0) for name in "ab"]


@pytest.mark.parametrize(
    ("times", "first", "says"),
    [
        (
            (1.5, 1.0, 0.1),
            0,
            "a step costs 2.60 greedy steps (a draft of 5.0 tokens 1.50, a target",
        ),
        (
            (1.5, 1.0, 0.1),
            0,
            "gives 2.00 tokens; it breaks even at an acceptance of 0.64 per token",
        ),
        ((1.5, 1.0, 0.1), 0, "per token, here 0.51; 58 % of the time is drafting"),
        ((6.0, 1.0, 0.0), 0, "a draft of 5.0 tokens cannot give 7.00"),
        ((0.5, 1.0, 0.0), 13, "only its first step is, 14.0 times greedy's"),
    ],
)
def test_why_a_decoder_is_slower_in_one_line(times, first, says):
    steps = [step(5, 1, draft_calls=5, times=times if at else (first, 1, 0)) for at in range(5)]
    line = why_slower(GREEDY, [sample(name, "speculative", steps, wall_s=30.0) for name in "ab"])
    assert says in line and "\n" not in line


def test_without_later_steps_there_is_no_reason():
    assert why_slower([], []) is None and why_slower(GREEDY, []) is None
