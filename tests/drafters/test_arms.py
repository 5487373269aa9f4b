"""Which arm a step uses: the one with the most tokens per cost, and now and then another."""

import pytest

from ouroboros.drafters.arms import FIRST_LOSS, TRIAL_SHARE, Arm, Arms, Outcome


def simulated(arms: Arms, rates: dict, steps: int, most=Arm.DRAFT, cost=2.0) -> list[Arm]:
    """Take steps whose arms make `rates` tokens per cost; return the arms used."""
    used = []
    for _ in range(steps):
        arm = arms.next(most)
        used.append(arm)
        outcomes = {other: Outcome(cost * rate, cost) for other, rate in rates.items()}
        arms.observe(arm, outcomes[arm], called=arm == Arm.DRAFT)
        if arm == Arm.DRAFT:
            arms.compare(outcomes[Arm.DRAFT], outcomes[Arm.TEXT])
    return used


@pytest.mark.parametrize(
    ("text", "draft", "best"), [(1.2, 2.0, Arm.DRAFT), (1.5, 0.5, Arm.TEXT), (0.7, 0.6, Arm.PLAIN)]
)
def test_the_fastest_arm_is_used_and_trials_cost_little(text, draft, best):
    arms, rates = Arms(), {Arm.PLAIN: 1.0, Arm.TEXT: text, Arm.DRAFT: draft}
    used = simulated(arms, rates, 2000)
    lost = sum(1.0 - rates[arm] / rates[best] for arm in used[40:]) * 2.0
    assert used[40:].count(best) > 0.9 * 1960
    assert lost <= TRIAL_SHARE * 4000 + FIRST_LOSS + 8.0


@pytest.mark.parametrize(("text", "draft", "steps"), [(1.4, 0.5, 1000), (0.7, 0.6, 50)])
def test_an_arm_that_becomes_the_fastest_is_found_again(text, draft, steps):
    arms = Arms()
    simulated(arms, {Arm.PLAIN: 1.0, Arm.TEXT: text, Arm.DRAFT: draft}, steps)
    arms.begin_prompt()
    rates = {Arm.PLAIN: 1.0, Arm.TEXT: 1.4, Arm.DRAFT: 2.5}
    assert simulated(arms, rates, 400)[-100:].count(Arm.DRAFT) > 90


def test_one_bad_prompt_does_not_stop_the_draft_model():
    arms, rates = Arms(), {Arm.PLAIN: 1.0, Arm.TEXT: 1.5, Arm.DRAFT: 1.2}
    assert simulated(arms, rates, 60)[-40:].count(Arm.TEXT) >= 36
    arms.begin_prompt()
    assert [arms.next(Arm.DRAFT) for _ in range(20)] == [Arm.DRAFT] * 20


def test_trials_of_a_worthless_draft_pay_for_reading_and_not_for_the_text():
    arms = Arms()
    simulated(arms, {Arm.PLAIN: 1.0, Arm.TEXT: 1.4, Arm.DRAFT: 0.5}, 1000)
    for _ in range(1000):  # trials in which the draft model was not called
        arms.observe(Arm.DRAFT, Outcome(1.0, 1.0))
        arms.observe(Arm.DRAFT, Outcome(3.0, 1.5))
    pays = [arms.pays(10.0, 1) for _ in range(10)]
    assert pays[0] and not pays[-1]


def test_reading_a_prompt_pays_if_enough_steps_will_call_the_draft():
    arms = Arms()
    for _ in range(200):  # 3 more tokens, which cost 2.4 from the text, for 0.4 more
        arms.compare(Outcome(5.0, 2.0), Outcome(2.0, 1.6))
    assert arms.pays(18.0, 10) and not arms.pays(21.0, 10)
