"""Ouroboros by its name: what it proposes with models, what it keeps, what it refuses; that it is
lossless stands in test_baselines."""

import pytest
import torch
from ouroboros.baselines import Racer, SuffixDecoding, TokenRecycling
from tiny import StepLog, TableModel, llama, prompt_of
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from ouroboros import CachedModel, Ouroboros, Sampler, argmax
from ouroboros.bench.report.style import SOURCES
from ouroboros.calls import alone
from ouroboros.core.processors import Processed
from ouroboros.costs import Costs, Surface
from ouroboros.decode import RootOnly, decode, proposed
from ouroboros.drafters.arms import Arms
from ouroboros.drafters.ouroboros import cost_table
from ouroboros.engine.eager import PREFILL_ALONE
from ouroboros.engine.parallel.sharded import GatheringSelector
from ouroboros.integrations.generate import token_selector

EAGER = Costs(Surface.constant(1.0), Surface.constant(0.001))
PENALTY, WARM = RepetitionPenaltyLogitsProcessor(1.1), TemperatureLogitsWarper(0.3)
PENALISED = Processed(Sampler(temperature=0.3, seed=5), [PENALTY], vocab=13)
SAMPLED = GenerationConfig(do_sample=True)
LOOP = [3, 4, 5, 6, 7, 8] * 4


def steps_of(pair, prompt=None, max_new: int = 40, choose=argmax, **changes) -> list:
    recorded = StepLog(Ouroboros(pair[1], adapt=False, **changes))
    decode(pair[0], recorded, prompt or prompt_of(12, 3), max_new=max_new, choose=choose)
    return recorded.steps


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ({}, lambda tree: True),
        ({"children": 1}, lambda tree: tree.is_chain),
        ({"max_nodes": 5}, lambda tree: len(tree) <= 5),
        ({"judge": False}, lambda tree: "judged" not in tree.source),
    ],
)
@pytest.mark.parametrize("choose", [argmax, Sampler(seed=3)])
def test_trees_keep_to_size_budget_and_limits(pair, choose, limits, holds):
    names, options = set(), {"costs": EAGER, "max_nodes": 20, **limits}
    for _, budget, tree, _, _ in steps_of(pair, choose=choose, **options):
        assert len(tree) <= 20 and tree.draft_depth() <= budget - 1 and not tree.probe
        assert len(tree.children) == len(tree) - 1  # no two siblings of one token
        assert len(tree.probability) == len(tree) and all(0 < p <= 1 for p in tree.probability)
        assert holds(tree)
        names |= set(tree.source[1:])
    assert "draft" in names <= {"phrase", "recycled", "draft", "judged"}


@pytest.mark.parametrize(
    ("choose", "temperature"),
    [
        (argmax, 0.0),
        (Processed(argmax, [PENALTY, WARM], vocab=13), 0.0),
        (Sampler(temperature=0.3, seed=5), 0.3),
        (Sampler(seed=5), 1.0),
        (token_selector(SAMPLED, 5, [WARM], 13), 0.3),
        (token_selector(SAMPLED, 5, [PENALTY, WARM], 13), 0.3),
        (PENALISED, 0.3),
        (GatheringSelector(PENALISED, None), 0.3),
    ],
)
def test_the_drafter_knows_how_tokens_are_drawn(choose, temperature):
    """By every way to a choice: a sampler, transformers' settings, behind processors and ranks."""
    drafter = Ouroboros()
    drafter.reset(choose)
    s = drafter.grower.state
    assert (float(s.temperature), float(s.logit_scale)) == (temperature, temperature or 1.0)
    assert (int(s.noisy), int(s.seed)) == ((1, 5) if temperature else (0, 0))


def test_a_draft_that_is_not_worth_it_is_never_called():
    draft = CachedModel(llama(7))
    costs = Costs(Surface.constant(1.0), Surface.constant(50.0))
    drafter = Ouroboros(draft, costs=costs, adapt=False)
    drafter.reset(argmax)
    tree = alone(proposed(drafter, LOOP, 20))
    assert (
        drafter.draft_sequence.calls == 0 and len(tree) > 4 and set(tree.source[1:]) <= {"phrase"}
    )
    assert tree.tokens[1:5] == (3, 4, 5, 6)


@pytest.mark.parametrize(
    ("reading_ms", "limit", "budget", "steps", "called"),
    [
        *((1, None, 40, 1, True), (3, None, 40, 1, False), (3, 17, 40, 1, True)),
        *((1, None, 1, 1, False), (3, None, 40, 12, True)),
    ],
)
def test_a_draft_is_first_called_where_reading_the_text_pays_too(
    pair, reading_ms, limit, budget, steps, called
):
    """What reading costs: 1 or 3 target calls for 50 tokens, of which a limit leaves 17. A call is
    planned in each step, so more are expected as steps go on."""
    surfaces = Surface.constant(1.0), Surface.constant(0.001)
    drafter = Ouroboros(pair[1], costs=Costs(*surfaces, reading_ms={50: reading_ms}), adapt=False)
    pair[1].prefill_limit = limit
    drafter.reset(argmax)
    for length in range(50, 50 + steps):
        alone(drafter.propose(prompt_of(100)[:length], budget))
    pair[1].prefill_limit = None
    assert bool(drafter.draft_sequence.calls) == called


@pytest.mark.parametrize("recycle", [False, True])
def test_arms_learn_which_steps_called_the_draft(pair, monkeypatch, recycle):
    """Without recycling a step is learned from in the next one."""
    costs = Costs(Surface.constant(1.0), Surface.constant(0.1))
    drafter, seen = Ouroboros(pair[1], costs=costs, recycle=recycle, adapt=False), []
    monkeypatch.setattr(Arms, "observe", lambda self, arm, step, called=False: seen.append(called))
    monkeypatch.setattr(Arms, "next", lambda self, most: most)
    steps = decode(pair[0], drafter, LOOP, max_new=60).steps
    called = [step.draft_calls > 0 for step in steps]
    assert seen == called[: len(seen)] and len(seen) == len(called) - (not recycle)
    assert {*seen} == {False, True}


class Timed(TableModel):
    """A table whose calls take seconds, by the nodes that they score."""

    device = torch.device("cpu")
    max_len = 4096

    def __init__(self, seed: int, seconds) -> None:
        super().__init__(13, seed=seed)
        self.seconds = seconds

    def score(self, sequence, tokens, tree):
        sequence.busy_s += self.seconds(len(tree.logit_nodes))
        return super().score(sequence, tokens, tree)


@pytest.mark.parametrize(
    ("node", "call", "draft", "new", "pooled", "worst"),
    [
        (1.0, 0.2, 9, 120, 0.97, 0.9),
        (1.0, 0.4, 1, 120, 0.97, 0.9),
        (0.3, 0.4, 9, 48, 0.98, 0.9),
        (0.5, 0.1, 1, 48, 1.1, 1.05),
        (0.02, 0.05, 1, 120, 3.8, 3.5),
    ],
)
def test_drafting_is_hardly_slower_than_plain_decoding_whatever_calls_cost(
    node, call, draft, new, pooled, worst
):
    """The costs given: 0.1 for each further node, a draft call 0.1. True are `node` and `call`; a
    draft of another seed than the target's, 1, hardly ever agrees. Where drafting pays, as in the
    last two, it is not held back."""
    claimed = Surface.flat({1: 1.0, 65: 7.4}), Surface.constant(0.1)
    target = Timed(1, lambda nodes: 1 + node * (nodes - 1))
    drafter = Ouroboros(Timed(draft, lambda nodes: call), costs=Costs(*claimed))
    speeds, spent = [], 0.0
    for seed in range(8):
        choose = Sampler(seed=seed, temperature=1.5)
        trace = decode(target, drafter, prompt_of(20, seed), max_new=new, choose=choose)
        seconds = sum(step.draft_s + step.verify_s for step in trace.steps)
        speeds.append(len(trace.new_tokens) / seconds)
        spent += seconds
    assert 8 * new / spent >= pooled and min(speeds) >= worst


@pytest.mark.parametrize(
    ("drafted", "settings", "stored"),
    [
        (False, {"runners_up": True}, True),
        (True, {"runners_up": True}, True),
        (True, {}, False),
        (False, {}, False),
        (False, {"recycle": False}, False),
    ],
)
@pytest.mark.parametrize("choose", [argmax, Sampler(seed=3)])
def test_the_targets_runners_up_are_stored_for_every_node(pair, choose, drafted, settings, stored):
    drafter = Ouroboros(pair[1] if drafted else None, adapt=False, **settings)
    trace = decode(pair[0], drafter, prompt_of(12, 3), max_new=40, choose=choose)
    scored = sum(step.scored for step in trace.steps)
    assert drafter.grower.state.rankings == (scored if stored else 0)


def test_the_draft_reads_each_node_once_and_keeps_what_was_accepted(pair):
    target, draft = pair
    drafter = Ouroboros(draft, costs=EAGER, adapt=False)
    recorded = StepLog(drafter)
    trace = decode(target, recorded, prompt_of(9, 5), max_new=30)
    assert drafter.draft_sequence.scored == sum(step.draft_scored for step in trace.steps)
    assert any(step.draft_calls > 1 for step in trace.steps)
    text = trace.tokens
    own = drafter.draft_sequence.tokens
    assert own == text[: len(own)]


@pytest.mark.parametrize(
    ("length", "root_only"), [(PREFILL_ALONE + 1, False), (PREFILL_ALONE + 2, True)]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Ouroboros(costs=EAGER, adapt=False),
        lambda: Racer(),
        lambda: TokenRecycling(read_prompt=True),
        lambda: SuffixDecoding(max_tokens=20, branches=True),
    ],
)
def test_a_long_prompt_is_read_before_a_tree_is_proposed(make, length, root_only):
    """A branching tree would cost a forward of its own there, and the first token would wait."""
    drafter, prompt = make(), [*LOOP, 3, 4, 6, 3, 4] * 8
    drafter.reset(argmax)
    first = alone(proposed(drafter, prompt[-length:], 20))
    assert (len(first) == 1) == root_only
    drafter.observe(first, [5] * len(first), [0])
    assert len(alone(proposed(drafter, [*prompt[-length:], 5], 20))) > 1


def test_trees_are_filled_up_to_a_size_that_costs_less(pair):
    """With probes, which cannot be accepted; the last step has no room for them."""
    dip = {1: 50.0, 2: 107.0, 3: 156.0, 4: 25.0, 5: 26.0, 9: 90.0, 64: 99.0}
    costs = Costs(Surface.flat(dip), Surface.constant(20.0))
    for draft, prompt in ((pair[1], prompt_of(12, 3)), (None, prompt_of(5, 4))):
        recorded = StepLog(Ouroboros(draft, costs=costs, adapt=False))
        trace = decode(pair[0], recorded, prompt, max_new=40)
        assert trace.tokens == decode(pair[0], RootOnly(), prompt, max_new=40).tokens
        sizes = [len(tree) for _, _, tree, _, _ in recorded.steps]
        assert min(sizes[:-1]) >= 4
        fill = {tree.source[at] for _, _, tree, _, _ in recorded.steps for at in tree.probe}
        assert fill <= {"padding"} <= SOURCES.keys() and (draft or fill)
        paths = [path for _, _, _, _, path in recorded.steps]
        assert max(map(len, paths)) > 1
        assert all(step.drafted < step.scored for step in trace.steps)


def test_what_outlives_a_prompt(pair):
    prompt = prompt_of(12, 3)
    steps = {}
    for state in ("cold", "task"):
        drafter = Ouroboros(pair[1], pool_state=state, adapt=False)
        traces = [decode(pair[0], drafter, prompt, max_new=40) for _ in range(2)]
        steps[state] = [len(trace.steps) for trace in traces]
    assert steps["cold"][0] == steps["cold"][1] == steps["task"][0] > steps["task"][1]
    loaded = Ouroboros(pair[1], pool_state="loaded", pool=drafter.state_dict(), adapt=False)
    counts = [len(decode(pair[0], loaded, prompt, max_new=40).steps) for _ in range(2)]
    assert counts[0] == counts[1] < steps["cold"][0] and not loaded.carries_state


@pytest.mark.parametrize(
    ("measured", "counted"),
    [
        ({1: 8.0, 2: 8.2, 8: 9.4}, [8.0, 8.2, 8.4, 8.6]),
        ({1: 20.0, 2: 8.2, 8: 9.4}, [10.66, 8.2, 8.4, 8.6]),
        ({1: 3.0, 2: 8.2, 8: 9.4}, [7.38, 8.2, 8.4, 8.6]),
        ({1: 3.0, 3: 3.2, 4: 8.6, 8: 9.4}, [6.27, 6.97, 7.74, 8.6]),
        ({1: 1.0, 64: 64.0}, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_calls_timed_while_other_programs_ran_are_bounded(measured, counted):
    assert cost_table(Surface.flat(measured), 100)[:4] == pytest.approx(counted, abs=0.01)


def test_costs_are_those_of_the_current_batch_size():
    drafter = Ouroboros(adapt=False)
    drafter.reset(argmax)
    for step, size in enumerate((1, 2, 3, 1)):
        drafter.set_batch(size, 32 * step)
        next(drafter.propose([1, 2] * (step + 2), 8), None)
        assert (drafter.joint.size if drafter.joint else 1) == size
