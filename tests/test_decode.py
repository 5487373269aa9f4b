"""The star test: any drafter is lossless, also at ends, context limits and with cached prefixes."""

import copy
import random
import threading
from functools import partial

import pytest
import torch
from ouroboros.baselines import Speculative
from quick import mostly_slow
from tiny import CONTEXT, FAMILIES, VOCAB, RandomDrafter, cut, llama, noisy, plain, prompt_of

from ouroboros import CachedModel, DecodeTrace, Sampler, TokenTree, argmax
from ouroboros.bench.run.tree_recorder import Recorder
from ouroboros.decode import RootOnly, decode, stream
from ouroboros.engine.sequence import TreeModel

TREES = {"llama": 5_200, "gpt2": 3_200, "mistral": 1_000, "gemma3": 600}
QUICK = [("llama", 500), ("gpt2", 250), ("mistral", 150), ("gemma3", 200)]
SEEDS = {"mistral": 1, "gemma3": 3}  # whose texts depend on tokens far back


class Scripted(RootOnly):
    """Proposes the trees it is given, one for each step, re-rooted; then the root alone."""

    def __init__(self, *trees: TokenTree) -> None:
        self.trees = list(trees)

    def propose(self, tokens, budget):
        if not self.trees:
            return super().propose(tokens, budget)
        tree = self.trees.pop(0)
        return TokenTree((tokens[-1], *tree.tokens[1:]), tree.parents, tree.probe, tree.source)


@pytest.fixture(scope="module")
def pair():
    """An untouched model, and one cached model whose cache every test leaves in some state."""
    model = llama()
    return model, CachedModel(copy.deepcopy(model))


def truth_of(model, prompt: list[int]) -> list[int]:
    """The text up to the context's end: transformers' own, and the one token past its cache."""
    cached = CachedModel(copy.deepcopy(model))
    whole = decode(cached, RootOnly(), prompt, max_new=10 * CONTEXT).tokens
    if len(prompt) < CONTEXT:
        assert whole[:CONTEXT] == plain(model, prompt, CONTEXT - len(prompt))
    assert len(whole) == CONTEXT + 1
    return whole


def texts(model) -> list[tuple[list[int], list[int]]]:
    """(prompt, text to come): one-token prompts, unrelated ones, and the longest there are."""
    prompts = [prompt_of(n, seed) for n, seed in [(1, 0), (2, 1), (5, 2), (12, 3), (30, 4)]]
    prompts += [[*prompts[3], *prompt_of(8, 5)], prompt_of(CONTEXT - 1), prompt_of(CONTEXT)]
    return [(prompt, truth_of(model, prompt)) for prompt in prompts]


def sampled_texts(cached: CachedModel) -> list[tuple[list[int], list[int], Sampler]]:
    """(prompt, text of standard decoding, its sampler)."""
    found = []
    for seed in range(4):
        prompt, choose = prompt_of(2 + seed, 9), Sampler(seed=seed, temperature=1.2, top_k=8)
        trace = decode(cached, RootOnly(), prompt, max_new=10 * CONTEXT, choose=choose)
        found.append((prompt, trace.tokens, choose))
    return found


@pytest.mark.parametrize(("family", "count"), mostly_slow([*TREES.items(), *QUICK], quick=QUICK))
def test_any_drafter_is_lossless(family, count):
    """Random trees, probes, ends and lengths on one cache, greedy and sampled: 10,000 trees in all,
    none unequal."""
    model = FAMILIES[family](SEEDS.get(family, 0))
    cached = CachedModel(copy.deepcopy(model))
    known = [(*text, argmax) for text in texts(model)] + sampled_texts(cached)
    draw, trees, unequal, runs, deepest = random.Random(family), 0, 0, 0, 0
    while trees < count:
        prompt, truth, choose = draw.choice(known)
        eos = set(draw.sample(range(VOCAB), draw.choice([0, 0, 0, 1, 2])))
        max_new = draw.choice([0, 1, 2, 7, CONTEXT, 10 * CONTEXT])
        drafter = RandomDrafter(truth, seed=runs, hit=draw.choice([0.1, 0.5, 0.8, 0.95]))
        trace = decode(cached, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
        unequal += trace.tokens != cut(truth, len(prompt), max_new, eos)
        trees, runs = trees + drafter.trees, runs + 1
        deepest = max(deepest, drafter.deepest)
        check_trace(trace, max_new, eos)
    assert unequal == 0
    assert deepest >= 5


def check_trace(trace: DecodeTrace, max_new: int, eos) -> None:
    """The counts of a trace add up to its tokens."""
    assert sum(step.new for step in trace.steps) == len(trace.new_tokens)
    for step in trace.steps:
        assert step.accepted <= step.drafted < step.scored
        assert step.accepted <= step.new <= step.accepted + 1
        assert len(step.sources) == step.new
    ended = bool(trace.steps) and trace.tokens[-1] in eos
    if ended:
        assert trace.finish == "eos"
    else:
        assert trace.finish == ("length" if len(trace.tokens) <= CONTEXT else "context")
        assert len(trace.new_tokens) == min(max_new, CONTEXT + 1 - trace.prompt_len)


def wrong(token: int) -> int:
    return (token + 1) % VOCAB


def test_where_a_draft_ends_and_who_proposed_each_token(pair):
    """In a chain, in a branch, as the bonus, and not by a token that is drafted but not chosen."""
    model, cached = pair
    prompts = map(partial(prompt_of, 4), range(100))
    prompt = next(one for one in prompts if len({*plain(model, one, 4)[4:]}) == 4)
    new = plain(model, prompt, 6)[4:]
    branches = [[wrong(new[0])], [new[0], wrong(new[1]), 3], new[:5]]
    missed = [new[0], wrong(new[1]), wrong(new[2])]
    for tree, eos, count, sources in (
        (TokenTree.chain(0, new[:5], "a"), [new[2]], 3, ["a"] * 3),
        (TokenTree((0,), (-1,)).graft(branches, source="a"), [new[2]], 3, ["a"] * 3),
        (TokenTree.chain(0, new[:2], "a"), [new[2]], 3, ["a", "a", "bonus"]),
        (TokenTree.chain(0, missed, "a"), {*missed[1:]} - {*new[:4]}, 2, ["a", "correction"]),
        (TokenTree.chain(0, [wrong(new[0])]), (), 1, ["correction"]),
        (TokenTree.chain(0, ()), (), 1, ["target"]),
    ):
        trace = decode(cached, Scripted(tree), prompt, max_new=4, eos=eos)
        step, ended = trace.steps[0], new[2] in eos
        assert (step.new, step.accepted, list(step.sources)) == (count, count - 1, sources)
        assert trace.new_tokens == new[: count if ended else 4]
        assert trace.finish == ("eos" if ended else "length")
        if ended:
            assert cached.resident.tokens == [*prompt, *new[:2]] and len(trace.steps) == 1


def test_a_model_serves_one_thread_at_a_time(pair, monkeypatch):
    model, cached = copy.deepcopy(pair[0]), CachedModel(copy.deepcopy(pair[0]))
    prompt, errors, call = prompt_of(9), [], cached.engine.call

    def other_thread() -> None:
        with pytest.raises(ValueError, match="another thread is using this model") as error:
            decode(cached, RootOnly(), prompt_of(5), max_new=3)
        errors.append(error)

    def intrude(*args):
        monkeypatch.undo()
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        return call(*args)

    monkeypatch.setattr(cached.engine, "call", intrude)
    text = decode(cached, RootOnly(), prompt, max_new=20).tokens
    assert text == plain(model, prompt, 20) and len(errors) == 1


def test_nothing_is_drafted_beyond_the_last_position(pair):
    """At the full context, or a shorter max_len, one more token is chosen, and none after it."""
    model, cached = pair
    prompt = prompt_of(CONTEXT)
    trace = decode(cached, Scripted(TokenTree.chain(0, [1, 2, 3])), prompt, max_new=9)
    assert len(trace.new_tokens) == 1 and trace.finish == "context"
    assert trace.steps[0].drafted == 0 and trace.steps[0].scored == 1
    small = CachedModel(copy.deepcopy(model), max_len=12)
    trace = decode(small, RootOnly(), prompt_of(9), max_new=50)
    assert trace.tokens == plain(model, prompt_of(9), 4) and trace.finish == "context"


def test_a_tree_deeper_than_its_budget_is_cut(pair):
    text = truth_of(pair[0], [3, 4, 5])
    deep = TokenTree.chain(5, text[3:13]).graft([[1] * 8, [2]])
    trace = decode(pair[1], Scripted(deep), [3, 4, 5], max_new=4)
    assert trace.new_tokens == text[3:7]
    assert [(step.drafted, step.scored, step.accepted) for step in trace.steps] == [(3, 7, 3)]


def test_streaming_grows_one_trace(pair):
    model, cached = pair
    prompt = prompt_of(5)
    truth = plain(model, prompt, 20)
    drafter = RandomDrafter(truth, seed=1, hit=0.9)
    lengths, kept = [], None
    for trace in stream(cached, drafter, prompt, max_new=20):
        assert kept is None or trace is kept
        kept = trace
        lengths.append(len(trace.tokens))
    assert kept is not None and kept.tokens == truth
    assert lengths == sorted(set(lengths)) and len(lengths) == len(kept.steps) < 20
    assert [len(t.tokens) for t in stream(cached, drafter, prompt, max_new=0)] == [5]


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ([], {}, "the prompt is empty"),
        ([5], {"max_new": -1}, "max_new is -1"),
        ([5] * (CONTEXT + 1), {}, f"has {CONTEXT + 1} tokens, the model's context {CONTEXT}"),
        ([5, VOCAB], {}, f"the prompt holds id {VOCAB}, the model knows ids 0 to {VOCAB - 1}"),
        ([5], {"prefill_limit": 5}, "prefill_limit is 5; set it to None"),
    ],
)
def test_what_cannot_be_decoded_is_refused(pair, monkeypatch, prompt, options, reason):
    monkeypatch.setattr(pair[1], "prefill_limit", options.get("prefill_limit"))
    with pytest.raises(ValueError, match=reason):
        decode(pair[1], RootOnly(), prompt, max_new=options.get("max_new", 5))


def test_a_model_in_training_mode_is_refused():
    target, draft = CachedModel(llama()), CachedModel(llama(1))
    for model in (target, draft):
        model.model.train()
        with pytest.raises(ValueError, match=r"training mode .* call eval\(\)"):
            decode(target, Speculative(draft, gamma=2), prompt_of(5), max_new=4)
        model.model.eval()


def test_waiting_is_a_part_of_the_time_in_both_models():
    target = CachedModel(llama())
    draft = CachedModel(noisy(target.model))
    drafter = Speculative(draft, gamma=3)
    trace = decode(target, drafter, prompt_of(9), max_new=12)
    for step in trace.steps:
        assert 0 < step.wait_s <= step.draft_s + step.verify_s
    own = drafter.draft_sequence
    assert sum(step.draft_scored for step in trace.steps) == own.scored == own.calls
    assert own.wait_s < sum(step.wait_s for step in trace.steps)


class Ranking(RandomDrafter):
    """Wants the target's best tokens at every node, and keeps them."""

    ranks = 3

    def observe_ranked(self, tree, ranked, path):
        self.shown = tree, ranked, path

    def observe(self, tree, chosen, path):
        tree_shown, ranked, path_shown = self.shown
        assert tree_shown is tree and path_shown is path
        assert ranked.ids.shape == ranked.shares.shape == (len(tree.logit_nodes), 3)
        assert ranked.ids[:, 0].tolist() == [chosen[node] for node in tree.logit_nodes]
        super().observe(tree, chosen, path)
        del self.shown


@pytest.mark.parametrize("choose", [argmax, Sampler(temperature=0.8, seed=2)])
@pytest.mark.parametrize("wrapped", [lambda drafter: drafter, Recorder])
def test_a_drafter_may_see_the_ranks_and_the_text_stays(pair, choose, wrapped):
    prompt = prompt_of(6)
    truth = decode(pair[1], RootOnly(), prompt, max_new=30, choose=choose).tokens
    drafter = Ranking(truth, seed=3)
    assert decode(pair[1], wrapped(drafter), prompt, max_new=30, choose=choose).tokens == truth
    assert drafter.trees < 25 and drafter.deepest > 2


class TableTarget(TreeModel):
    """After token t it chooses t + 1, except 5 after 3."""

    max_len = vocab_size = 64

    def score(self, sequence, tokens, tree):
        following = {token: token + 1 for token in range(9)} | {3: 5}
        chosen = torch.tensor([following[tree.tokens[node]] for node in tree.logit_nodes])
        return torch.nn.functional.one_hot(chosen, 10).double()


def test_two_steps_by_hand():
    """A worked example: what each step proposes, what the target chooses, what is kept.

    Step 1: the sequence ends with 1; the draft is 2 3 4, and 5 instead of 4 (node 4).
        node    0  1  2  3  4
        token   1  2  3  4  5
        parent -1  0  1  2  2
        chosen  2  3  5  5  6     the path is 0 1 2 4: new tokens 2 3 5 and the bonus 6
    Step 2: the sequence ends with 6; the draft is 8, but the target chooses 7, a correction.
    Step 3: the sequence ends with 7 and nothing is drafted: one token, the target's 8.
    """
    first = TokenTree((1, 2, 3, 4, 5), (-1, 0, 1, 2, 2), source=("", "a", "a", "a", "b"))
    drafter = Scripted(first, TokenTree.chain(6, [8], "a"))
    trace = decode(TableTarget(), drafter, [0, 1], max_new=6)
    assert trace.new_tokens == [2, 3, 5, 6, 7, 8]
    assert [step.new for step in trace.steps] == [4, 1, 1]
    assert [step.accepted for step in trace.steps] == [3, 0, 0]
    assert [step.sources for step in trace.steps] == [
        ("a", "a", "b", "bonus"),
        ("correction",),
        ("target",),
    ]
    assert trace.new_tokens == decode(TableTarget(), RootOnly(), [0, 1], max_new=6).new_tokens
