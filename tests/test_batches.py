"""Sequences decoded together: each has the text of its prompt alone, whatever the others are."""

import copy
import random
from collections.abc import Sequence
from itertools import cycle

import pytest
from architectures import SUPPORTED, config_of
from ouroboros.baselines import Speculative
from tiny import RandomDrafter, build, llama, mostly_slow, prompt_of

from ouroboros import CachedModel, Ouroboros, Sampler, TokenTree, argmax
from ouroboros.costs import Costs, Surface
from ouroboros.decode import Decoding, RootOnly, begin, decode, together
from ouroboros.drafters.joint_budget import JointCosts, share_draft_call

ONE_BY_ONE = {
    **dict.fromkeys(["gemma2", "vaultgemma", "gpt_oss", "gptj", "codegen"], "eager"),
    **dict.fromkeys(["stablelm", "falcon"], "sdpa"),
    **dict.fromkeys(["deepseek_v2", "deepseek_v3"], "reads keys in another shape"),
}
"""Architectures whose attention cannot be divided among sequences, and the reason given."""
QUICK = ("llama", "gemma3_text", "gptj", "stablelm", "deepseek_v3")


class Moody(RandomDrafter):
    """Random trees that stop for a while and come again."""

    def propose(self, tokens: Sequence[int], budget: int) -> TokenTree:
        if len(tokens) // 4 % 3 == 1:
            return TokenTree.chain(tokens[-1], ())
        return super().propose(tokens, budget)


def run(decodings: Sequence[Decoding], size: int, *, refill: bool = True) -> list[list[int]]:
    """The texts of decodings that run together."""
    most = 0
    for live in together(iter(decodings), size, refill=refill):
        most = max(most, len(live))
    assert most <= size
    return [own.trace.tokens for own in decodings]


@pytest.mark.parametrize("name", mostly_slow(SUPPORTED, quick=QUICK))
def test_random_trees_together_give_each_text_alone(name):
    """Ragged prompts, arrivals, departures, ends in the middle, rows without a draft, pauses."""
    target = CachedModel(build(config_of(name, SUPPORTED[name])))
    if name in ONE_BY_ONE and (reason := target.why_not_together()):  # older transformers differ
        assert ONE_BY_ONE[name] in reason
        with pytest.raises(ValueError, match="scores one sequence at a time"):
            run([begin(target, RootOnly(), [5, 6], max_new=3) for _ in range(2)], 2)
        return
    assert target.why_not_together() is None
    draw, expected, rows = random.Random(name), [], []
    for index in range(10):
        prompt = prompt_of(draw.choice([1, 2, 9, 21]), index)
        max_new = draw.choice([0, 1, 12, 20])
        choose = draw.choice([argmax, Sampler(seed=index, temperature=0.8)])
        text = decode(target, RootOnly(), prompt, max_new=max_new, choose=choose)
        eos = set(text.new_tokens[draw.randrange(20) :][:1])
        ended = decode(target, RootOnly(), prompt, max_new=max_new, choose=choose, eos=eos)
        expected.append((ended.tokens, ended.finish))
        drafter = draw.choice([RandomDrafter, Moody])(text.tokens, seed=index, hit=0.8)
        if index % 4 == 3:
            drafter = RootOnly()
        rows.append((drafter, prompt, {"max_new": max_new, "choose": choose, "eos": eos}))
    for size, refill in ((3, True), (8, False)):
        order = draw.sample(range(10), 10)
        decodings = {at: begin(target, rows[at][0], rows[at][1], **rows[at][2]) for at in order}
        run(list(decodings.values()), size, refill=refill)
        for at, own in decodings.items():
            assert (own.trace.tokens, own.trace.finish) == expected[at]
            assert sum(step.new for step in own.trace.steps) == len(own.trace.new_tokens)


def test_calls_are_joined_and_nothing_is_padded():
    """Two sequences whose drafts are 0 and 3 tokens: one draft call serves a step, one target
    call, of exactly the tokens that there are. A long prompt is fed alone."""
    model = llama(max_position_embeddings=512)
    target, draft, fed = CachedModel(copy.deepcopy(model)), CachedModel(model), []
    target.why_not_together(), draft.why_not_together()
    for own in (target, draft):
        own.model.register_forward_pre_hook(
            lambda module, _, kwargs: fed.append(
                (module is draft.model, kwargs["input_ids"].shape)
            ),
            with_kwargs=True,
        )
        own.new_sequence()  # tests the hook, in calls that are not counted
    fed.clear()
    rows = [
        begin(target, Speculative(draft, gamma=3), prompt_of(200), max_new=9),
        begin(target, Speculative(draft, gamma=2), prompt_of(4), max_new=9),
        begin(target, RootOnly(), prompt_of(6), max_new=9),
    ]
    steps = together(rows, 3)
    next(steps)
    drafting = [shape[1] for is_draft, shape in fed if is_draft]
    verifying = [shape[1] for is_draft, shape in fed if not is_draft]
    assert drafting == [199, 1 + 4, 2, 1] and verifying == [199, 4 + 3 + 3 + 6]
    assert all(shape[0] == 1 for _, shape in fed)
    assert rows[0].trace.steps[0].target_forwards == 2


COSTS = Costs(Surface.flat({1: 10.0, 16: 10.0, 32: 20.0, 64: 40.0}), Surface.constant(1.0))
"""Of a machine where 16 nodes cost as much as one, and beyond these each costs its share."""


BOTH = [COSTS, Costs(Surface.flat({1: 1.0, 64: 64.0}))]


@pytest.mark.parametrize("costs", mostly_slow(BOTH, quick=[COSTS]))
def test_trees_shrink_to_nothing_as_more_sequences_share_a_call(costs):
    target, means = CachedModel(llama()), []
    for size in (1, 4, 16, 64):
        rows = [
            begin(target, Ouroboros(costs=costs, adapt=False), [5, 6, n % 9], max_new=30)
            for n in range(size)
        ]
        texts = run(rows, size, refill=False)
        assert texts[0] == decode(target, RootOnly(), [5, 6, 0], max_new=30).tokens
        steps = [step for own in rows for step in own.trace.steps]
        means.append(sum(step.scored for step in steps) / len(steps))
    assert means == sorted(means, reverse=True) and means[-1] < 1.05
    assert (means[0] > 1.5) == (costs is COSTS)


class Offering:
    """A drafter as the joint budget sees it."""

    def __init__(self, gain: float) -> None:
        self.joint, self.drafting_ms = JointCosts(COSTS, (100, 100), 4), 0.0
        self.grower = Ouroboros(costs=COSTS).grower
        self.grower.start()
        self.grower.set_costs(self.joint.verify, self.joint.further_draft)
        self.grower.state.gain, self.grower.state.pending = gain, 2


def test_a_draft_call_is_made_for_those_who_together_pay_for_it():
    """It costs 0.1 target calls and planning, and 4 sequences gain 8 tokens in one."""
    assert share_draft_call([Offering(0.36)]) == [False]
    assert share_draft_call([Offering(0.36) for _ in range(8)]) == [True] * 8
    rows = [Offering(7.2), Offering(0.36), Offering(-0.36)]
    assert share_draft_call(rows) == [True, True, False]
    assert [row.drafting_ms for row in rows] == [1.0, 1.0, 0.0]


def test_a_drafter_of_several_sequences_at_a_time_is_refused():
    """Ouroboros would write beyond its buffers."""
    target, drafter = CachedModel(llama()), RootOnly()
    rows = (begin(target, drafter, [5, n], max_new=9) for n in range(2))
    with pytest.raises(ValueError, match="share one drafter"):
        run(rows, 2)
    rows = [begin(target, drafter, [5, n], max_new=9) for n in range(2)]
    assert [len(text) for text in run(rows, 1)] == [11, 11]


def test_a_joint_sequence_scores_by_itself_too():
    """With slots of its own: score, accept and roll as ever."""
    model = llama()
    target, plain = CachedModel(model), CachedModel(copy.deepcopy(model))
    own, other = target.new_sequence(), target.new_sequence()
    root = TokenTree.chain(6, ())
    target.score_all([(own, [5, 6], root), (other, [7, 6], root)])
    target.accept(own, [0])
    for seed, sequence in zip(cycle([1, 2]), (own, other, own), strict=False):
        text = prompt_of(9, seed)
        expected = decode(plain, RootOnly(), text, max_new=6).new_tokens
        assert target.roll(sequence, text, 6, argmax) == expected
        assert sequence.tokens == [*text, *expected[:-1]]
    assert target.cache.length == 0
