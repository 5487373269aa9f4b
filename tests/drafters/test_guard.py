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


def ready(seconds: float = 1.0) -> Guard:
    """A guard after the plain steps that it begins with."""
    guard = Guard()
    while guard.paused:
        observe(guard, seconds=seconds)
    return guard


def lose_a_prompt(guard: Guard) -> int:
    """Take steps of 3 seconds a token until a pause; return its length."""
    if guard.first:  # with the prefill: not counted
        observe(guard, nodes=9, seconds=99.0)
    for _ in range(9):
        if guard.paused:
            break
        observe(guard, nodes=9, seconds=3.0, price=1.4)
    return guard.pause_left


def test_a_pause_ends_with_its_prompt_and_two_lost_prompts_begin_one_and_correct_prices():
    guard = ready()
    assert lose_a_prompt(guard) == Guard.PAUSE
    guard.begin_prompt()
    assert not guard.paused and not guard.correct_prices()
    assert lose_a_prompt(guard) == Guard.PAUSE
    guard.begin_prompt()
    credit, steps = guard.credit, 0
    assert guard.correct_prices() and guard.node_price == pytest.approx((3.0 - 1.4) / 8)
    while guard.paused:
        observe(guard)
        steps += 1
    assert steps == pytest.approx(-credit / Guard.SHARE, abs=1.01)  # rounding
    guard.begin_prompt()
    assert not guard.paused and guard.credit >= 0


def test_gains_allow_a_larger_loss():
    poor, rich = ready(), ready()
    for guard, tokens in ((poor, 1), (rich, 4)):
        for _ in range(9):
            observe(guard, new=tokens, nodes=9)
        guard.begin_prompt()
        observe(guard)
        observe(guard, nodes=9, seconds=3.5)
    assert poor.paused and not rich.paused


def test_a_slow_step_counts_once():
    guard = ready()
    for _ in range(9):
        observe(guard, new=4, nodes=9)
    observe(guard, new=4, nodes=9, seconds=50.0)
    assert not guard.paused


def test_one_prompt_alone_pauses_no_other_and_reading_pauses_no_prompt():
    guard = ready()
    for pauses in (False, True):
        observe(guard, nodes=9)
        observe(guard, nodes=9, seconds=6.0, draft_caught_up=200)
        assert not guard.paused and guard.credit < 0
        guard.begin_prompt()
        assert guard.paused == pauses


def test_a_slower_machine_ends_the_pause_that_it_began():
    for plain_now, ends in ((1.0, False), (2.9, True)):
        guard = ready()
        assert lose_a_prompt(guard) == Guard.PAUSE and guard.credit < 2.0
        before = guard.credit
        for _ in range(Guard.CHECK):
            assert guard.paused
            observe(guard, seconds=plain_now)
        assert guard.paused != ends and (guard.credit > before + 1) == ends


def test_losses_of_an_earlier_prompt_do_not_change_this_ones_balance():
    guard = ready()
    for _ in range(5):
        observe(guard, nodes=9, seconds=1.2)
    guard.begin_prompt()
    observe(guard)
    for _ in range(Guard.CHECK):
        observe(guard, seconds=2.0)
    assert guard.net == guard.lost == 0.0


def test_a_faster_machine_shows_in_the_steps_own_target_call():
    guard = ready(seconds=2.0)
    for _ in range(3):
        observe(guard, nodes=9, seconds=1.0)  # two tokens' time by the old plain steps
    assert guard.lost == 0.0 and guard.credit < Guard.START + 0.1


def test_draft_prices_allow_for_a_machine_that_became_slower():
    guard = ready()
    for _ in range(5):
        record = StepRecord(2, 3, 2, 3, 2, ("target",) * 3, 0.4, 2.4, 0.0)
        guard.observe(record, 1.0, 1.2, 0.2)
    guard.correct_prices()
    assert guard.draft_price == pytest.approx(Guard.TRUST)
