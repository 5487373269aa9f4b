"""When drafting pays: the rule against its definition, and drafters that follow it."""

from __future__ import annotations

import itertools
import random

import pytest

from ouroboros import Ouroboros
from ouroboros.bench.measure.scripted import Drafting, Script, ScriptedModel, draft_script
from ouroboros.decode import decode
from ouroboros.drafters.drafting import Draft, Rank
from ouroboros.drafters.pace import FORGET, PROBE_FIRST, PROBE_LAST, Doubt, Mean, Worth, pace

SIZES = {"gamma": 6, "window_size": 3, "ngram_size": 4, "verification_set_size": 3}
DRAW = random.Random(3)
NOVEL = list(range(1000))  # no token twice: the pool never helps
LOOPED = [DRAW.randrange(50) for _ in range(40)] * 25


def draft(tokens: int, *, share: float = 0.9, root: int = -1, end: int = -1) -> Draft:
    ranks = [Rank(1, share, 2, 1 - share)] * tokens
    return Draft([1] * tokens, ["draft"] * tokens, ranks, list(range(tokens)), root, end)


def taught(cost: float, *, accepted: int, steps: int = 30) -> Worth:
    """A pace after steps whose drafts of four tokens had so many accepted."""
    worth = Worth(cost)
    for _ in range(steps):
        worth.learn(draft(4), [1] * accepted + [7], kept=accepted)
    return worth


def test_a_mean_forgets():
    mean = Mean(2.0, weight=1.0)
    for value in (5.0, 5.0, 1.0):
        mean.add(value)
    weights = [FORGET**3, FORGET**2, FORGET, 1]
    expected = sum(w * v for w, v in zip(weights, (2, 5, 5, 1), strict=True)) / sum(weights)
    assert mean.value == pytest.approx(expected)


def test_drafting_goes_on_while_it_gains_more_than_its_cost():
    """Four calls bring three tokens and the target's own: 4 / (1 + 4c) tokens per cost."""
    for cost in (0.05, 0.1, 0.2, 0.3, 0.5):
        worth = taught(cost, accepted=3)
        pays = 4 / (1 + 4 * cost) * cost * 4 < 3
        assert worth.starts(-1) is pays, cost


def test_a_draft_that_is_unlikely_to_be_reached_ends():
    worth = taught(0.1, accepted=3)
    assert worth.goes_on(draft(1)) and not worth.goes_on(draft(1, share=0.1))


def test_phrases_at_the_root_are_weighed_against_the_draft():
    worth = Worth(0.18)
    for _ in range(20):
        made = draft(2, root=5)
        worth.learn(made, [1, 1, 7], kept=2, phrases=[[9, 9], [1, 1, 7]])
    assert not worth.starts(5) and worth.starts(-1)
    assert worth.root_first(draft(2, share=0.5, root=5)) and not worth.root_first(draft(2))


def test_where_no_draft_pays_one_is_tried_ever_more_rarely():
    worth = taught(0.2, accepted=0)
    tried = []
    for step in range(150):
        if worth.starts(-1):
            tried.append(step)
            worth.learn(draft(1), [7], kept=0)
        else:
            worth.learn(Draft(), [7], kept=0)
    gaps = [b - a for a, b in itertools.pairwise(tried)]
    assert tried[0] == PROBE_FIRST - 1 and gaps[:3] == [8, 16, 32]
    assert set(gaps[3:]) == {PROBE_LAST}
    assert taught(0.2, accepted=4).starts(-1)


def test_doubt_is_the_drafts_own_probability():
    doubt = Doubt(0.5)
    assert doubt.starts(6) and not doubt.root_first(draft(1))
    assert doubt.goes_on(draft(6)) and not doubt.goes_on(draft(7))
    assert isinstance(pace(stop_below=0.5, draft_cost=0.0), Doubt)
    assert isinstance(pace(stop_below=0.5, draft_cost=0.2), Worth)


def calls_of(drafter, agreement: float, text=NOVEL) -> tuple[int, int]:
    """Target and draft calls for 300 tokens with a draft that agrees so often."""
    driven = Drafting(drafter, draft_script(text, agreement))
    trace = decode(ScriptedModel(), driven, text[:20], max_new=300, choose=Script(text))
    assert trace.tokens == text[:320]
    return len(trace.steps), sum(step.draft_calls for step in trace.steps)


def ouroboros(cost: float) -> Ouroboros:
    options = {"draft_cost": cost, "stop_below": 0.5}
    return Ouroboros(ScriptedModel(), **SIZES, options=options)


def test_a_draft_that_is_never_right_is_given_up():
    steps, calls = calls_of(ouroboros(0.18), 0.0)
    _, fixed = calls_of(ouroboros(0.0), 0.0)
    assert steps > 200 and calls < 30 < 150 < fixed


def test_a_good_draft_is_used_as_before():
    steps, calls = calls_of(ouroboros(0.18), 0.95)
    fixed_steps, fixed_calls = calls_of(ouroboros(0.0), 0.95)
    assert steps + 0.18 * calls < 1.05 * (fixed_steps + 0.18 * fixed_calls)
    assert calls_of(ouroboros(0.18), 0.95) == (steps, calls)  # counts alone decide


def test_where_the_pool_knows_the_text_no_draft_is_asked():
    steps, calls = calls_of(ouroboros(0.18), 0.3, LOOPED)
    assert calls < steps < 150


def test_a_negative_cost_is_refused():
    with pytest.raises(ValueError, match=r"draft_cost -1\.0 must be above 0"):
        ouroboros(-1.0)
