"""The guard's rules, step by step; test_ouroboros simulates the time that they save."""

from __future__ import annotations

import pytest

from ouroboros.drafters.guard import Guard
from ouroboros.trace import StepRecord


def observe(guard: Guard, new=1, nodes=1, seconds=1.0, price=1.0, **counts):
    """Report a step of `nodes` nodes, whose target call was priced at `price` plain ones."""
    sources = ("target",) * new
    record = StepRecord(new - 1, nodes, new - 1, new, 0, sources, 0.0, seconds, 0.0, **counts)
    guard.observe(record, 1.0, price, 0.0)


def lose_a_prompt(guard: Guard) -> int:
    """Take steps of 3 seconds a token until a pause; return its length."""
    if guard.first:  # with the prefill: not counted
        observe(guard, nodes=9, seconds=99.0)
    for _ in range(9):
        if guard.steps_left:
            break
        observe(guard, nodes=9, seconds=3.0, price=1.4)
    return guard.steps_left


def test_a_pause_ends_with_its_prompt_and_two_lost_prompts_begin_one_and_correct_prices():
    guard = Guard()
    while guard.steps_left:
        observe(guard)
    assert lose_a_prompt(guard) == Guard.PAUSE
    guard.begin_prompt()
    assert guard.steps_left == 0 and not guard.correct_prices()
    assert lose_a_prompt(guard) == Guard.PAUSE
    guard.begin_prompt()
    assert guard.steps_left == pytest.approx(-guard.credit / Guard.SHARE, abs=1)
    assert guard.correct_prices() and guard.node_price == pytest.approx((3.0 - 1.4) / 8)
    while guard.steps_left:
        observe(guard)
    guard.begin_prompt()
    assert guard.steps_left == 0 and guard.credit >= 0


def test_gains_allow_a_larger_loss():
    poor, rich = Guard(), Guard()
    for guard, tokens in ((poor, 1), (rich, 4)):
        while guard.steps_left:
            observe(guard)
        for _ in range(9):
            observe(guard, new=tokens, nodes=9)
        guard.begin_prompt()
        observe(guard)
        observe(guard, nodes=9, seconds=3.5)
    assert poor.steps_left and not rich.steps_left


def test_a_slow_step_counts_once():
    guard = Guard()
    while guard.steps_left:
        observe(guard)
    for _ in range(9):
        observe(guard, new=4, nodes=9)
    observe(guard, new=4, nodes=9, seconds=50.0)
    assert guard.steps_left == 0


def test_one_prompt_alone_pauses_no_other_and_reading_pauses_no_prompt():
    guard = Guard()
    while guard.steps_left:
        observe(guard)
    for pauses in (False, True):
        observe(guard, nodes=9)
        observe(guard, nodes=9, seconds=6.0, draft_caught_up=200)
        assert guard.steps_left == 0 > guard.credit
        guard.begin_prompt()
        assert bool(guard.steps_left) == pauses
