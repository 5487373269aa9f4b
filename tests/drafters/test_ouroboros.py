"""What Ouroboros proposes and what it learns; that it is lossless stands in test_baselines."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from tiny import Recorded, llama, noisy, prompt_of

from ouroboros.choose import argmax
from ouroboros.decode import RootOnly, decode
from ouroboros.drafters.drafting import Rank, Watched
from ouroboros.drafters.learning import Hung
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.drafters.policy import OURS, PAPER
from ouroboros.drafters.pool import PhrasePool
from ouroboros.engine.model import CachedModel
from ouroboros.tree import TokenTree

SIZES = {"gamma": 4, "window_size": 3, "ngram_size": 4, "verification_set_size": 3}
ONLY_CHAIN = replace(PAPER, pool_while_filling=True)


@pytest.fixture(scope="module")
def pair():
    model = llama()
    return CachedModel(model), CachedModel(noisy(copy.deepcopy(model)))


def ready(draft: CachedModel, **changes) -> Ouroboros:
    """An Ouroboros after its reset, its draft model's cache unrelated."""
    drafter = Ouroboros(draft, **{**SIZES, **changes})
    drafter.reset(argmax)
    return drafter


def steps_of(pair, max_new: int = 40, prompt=None, **changes):
    target, draft = pair
    recorded = Recorded(Ouroboros(draft, **{**SIZES, **changes}))
    decode(target, recorded, prompt or prompt_of(12, 3) * 2, max_new=max_new)
    return recorded.drafter, recorded.steps


def chain_of(tree: TokenTree) -> list[int]:
    """The nodes of the draft itself: those named draft, phrase or recall."""
    return [n for n, name in enumerate(tree.source) if name in ("draft", "phrase", "recall")]


@pytest.mark.parametrize("policy", ["ours", "paper"])
def test_the_tree_is_a_draft_with_branches_within_the_budget(pair, policy):
    drafter, steps = steps_of(pair, policy=policy)
    for _, budget, tree, _, _ in steps:
        draft = chain_of(tree)
        assert draft == list(range(1, len(draft) + 1)) and not tree.probe
        assert tree.parents[: len(draft) + 1] == tuple(range(-1, len(draft)))
        assert tree.draft_depth() <= budget - 1
        assert len(tree) <= drafter.policy.max_nodes
        names = set(tree.source[len(draft) + 1 :])
        assert names <= ({"suffix"} if policy == "paper" else {"suffix", "runner-up"})
        if policy == "paper":
            assert len(draft) >= min(4, budget - 1)
            below = [n for n, name in enumerate(tree.source) if name == "suffix"]
            assert all(len(draft) in tree.path_to(node) for node in below)
            assert sum(tree.parents[node] == len(draft) for node in below) <= 3


def test_the_draft_is_the_small_models_own_text(pair):
    """Lookahead drafting is lossless too: the chain is what the draft model would say alone."""
    _, steps = steps_of(pair, policy="paper")
    alone = CachedModel(copy.deepcopy(pair[1].model))
    for tokens, _, tree, _, _ in steps:
        draft = [tree.tokens[node] for node in chain_of(tree)]
        expected = decode(alone, RootOnly(), tokens, max_new=len(draft)).new_tokens
        assert draft == expected


def test_phrases_of_the_pool_hang_below_the_drafts_end(pair):
    drafter = ready(pair[1], policy="paper", window_size=0, topk=2)
    tokens = prompt_of(5)
    end = drafter.propose(tokens, 20).tokens[-1]
    drafter.reset(argmax)
    for phrase in [(7, 7, 7), (1, 2, 3), (1, 2, 9)]:
        drafter.pool.add(end, phrase)
    tree = drafter.propose(tokens, 20)
    at = len(chain_of(tree))
    assert tree.tokens[at] == end
    assert tree.tokens[at + 1 :] == (1, 2, 9, 3)
    assert tree.parents[at + 1 :] == (at, at + 1, at + 2, at + 2)
    assert tree.source[at + 1 :] == ("suffix",) * 4
    drafter.topk = 0
    assert len(drafter.propose(tokens, 20)) == at + 1


def proposed(drafter: Ouroboros, tree: TokenTree, chain: int) -> None:
    """As if `propose` had given this tree, its first `chain` nodes below the root the draft."""
    drafter._chain, drafter._hung = chain, []
    drafter.pool.clear()
    for branch in (n for n in range(len(tree)) if n > chain and n not in tree.parents):
        path = tree.path_to(branch)
        if chain in path:
            phrase = tuple(tree.tokens[n] for n in path[chain + 1 :])
            drafter.pool.add(tree.tokens[chain], phrase)
            drafter._hung.append(Hung(chain, phrase, []))


SUFFIXED = TokenTree.chain(0, [1, 2]).graft([(3, 4, 5), (6, 7, 8)], at=2, source="suffix")


def test_verified_suffixes_are_corrected_on_full_acceptance(pair):
    for policy in ("ours", "paper"):
        drafter = ready(pair[1], policy=policy)
        proposed(drafter, SUFFIXED, 2)
        drafter.observe(SUFFIXED, [1, 2, 3, 9, 10, -1, 11, 12, -1], [0, 1, 2, 3])
        assert {phrase for _, phrase in drafter.pool} == {(3, 9, 10), (3, 11, 12)}


def test_a_path_that_leaves_the_chain_leaves_a_rejected_tail(pair):
    """Two nodes of the draft and two of a runner-up are accepted: the draft's third is not."""
    drafter = ready(pair[1], ngram_size=3, topk=0, options={"agreements": 9})
    tree = TokenTree.chain(0, [1, 2, 3, 4]).graft([(7, 8)], at=2, source="runner-up")
    proposed(drafter, tree, 4)
    drafter.observe(tree, [1, 2, 7, 9, 10, 8, 11], [0, 1, 2, 5, 6])
    assert list(drafter.pool) == [(9, (10,))]


def test_only_ours_corrects_suffixes_after_a_rejection(pair):
    for policy, expected in (("paper", {(3, 4, 5), (6, 7, 8)}), ("ours", {(3, 9, 10), (3, 8, 9)})):
        drafter = ready(pair[1], policy=policy, options={"tail_predictions": False})
        proposed(drafter, SUFFIXED, 2)
        drafter.observe(SUFFIXED, [4, 4, 3, 9, 10, 0, 8, 9, 0], [0])
        assert {phrase for key, phrase in drafter.pool if key == 2} == expected


@pytest.mark.parametrize(("need", "count"), [(None, 0), (3, 0), (2, 1), (1, 2), (0, 4)])
def test_agreements_along_the_rejected_tail_make_phrases(pair, need, count):
    """Nodes 1 to 4 are rejected; the target agrees with the draft after nodes 1 and 2 only."""
    drafter = ready(
        pair[1],
        ngram_size=6,
        topk=0,
        options={"agreements": need, "tail_predictions": False},
    )
    tree = TokenTree.chain(0, [1, 2, 3, 4])
    proposed(drafter, tree, 4)
    drafter.observe(tree, [9, 2, 3, 8, 7], [0])
    made = dict(drafter.pool)
    assert len(made) == count
    if count > 0:
        assert made[1] == (2, 3, 8)


def test_predictions_along_the_rejected_tail_make_phrases(pair):
    drafter = ready(pair[1], ngram_size=3, topk=0, options={"agreements": 9})
    tree = TokenTree.chain(0, [1, 2, 3, 4])
    proposed(drafter, tree, 4)
    drafter.observe(tree, [1, 9, 10, 11, 12], [0, 1])
    assert list(drafter.pool) == [(10, (11, 12)), (11, (12,))]
    drafter.learn = False
    drafter.pool.clear()
    drafter.observe(tree, [1, 9, 10, 11, 12], [0, 1])
    assert len(drafter.pool) == 0


def test_prompt_and_output_phrases_are_switches(pair):
    prompt = [3, 4, 5, 6, 7]
    quiet = {"output_phrases": False, "prompt_phrases": False}
    for options, first, later in [
        ({}, {3, 4}, {3, 4, 5, 6}),
        ({"prompt_phrases": False}, set(), {5, 6}),
        ({"output_phrases": False}, {3, 4}, {3, 4}),
        (quiet, set(), set()),
    ]:
        drafter = ready(pair[1], options=options)
        drafter._take_text(prompt)
        assert {key for key, _ in drafter.pool} == first
        drafter._take_text([*prompt, 8, 9])
        assert {key for key, _ in drafter.pool} == later


def test_a_cold_pool_is_emptied_a_task_pool_kept_and_a_loaded_one_restored(pair):
    given = PhrasePool(phrase_len=3, per_key=3)
    given.add(1, [2, 3, 4])
    for state, left in (("cold", []), ("task", [1, 9]), ("loaded", [1])):
        pool = copy.deepcopy(given)
        own = {} if state == "cold" else {"pool": pool}
        drafter = Ouroboros(pair[1], **SIZES, pool_state=state, **own)
        drafter.pool.add(9, [9, 9, 9])
        drafter.reset(argmax)
        assert [key for key, _ in drafter.pool] == left
        drafter.reset(argmax)
        assert [key for key, _ in drafter.pool] == left


def test_a_loaded_pool_keeps_its_contexts_from_prompt_to_prompt(pair):
    given = PhrasePool(phrase_len=3, per_key=3)
    given.add(1, [2, 3, 4], before=[7, 8])
    given.add(1, [5, 5, 5])
    drafter = Ouroboros(pair[1], **SIZES, pool_state="loaded", pool=given)
    for _ in range(2):
        drafter.reset(argmax)
        assert drafter.pool.get(1, 1, before=[7, 8]) == [(2, 3, 4)]
        drafter.pool.add(1, [6, 6, 6], before=[7, 8])


@pytest.mark.parametrize(
    ("pool", "state", "says"),
    [
        (PhrasePool(phrase_len=3, per_key=3), "cold", "would empty the pool"),
        (PhrasePool(phrase_len=9, per_key=3), "loaded", "phrases of 9 tokens"),
        ("pool.json", "task", "give a PhrasePool"),
    ],
)
def test_a_pool_that_cannot_serve_is_refused(pair, pool, state, says):
    with pytest.raises(ValueError, match=says):
        Ouroboros(pair[1], **SIZES, pool_state=state, pool=pool)


def test_a_warm_pool_saves_calls(pair):
    prompt = prompt_of(12, 3)
    calls = {}
    for state in ("cold", "task"):
        recorded = Ouroboros(pair[1], **SIZES, pool_state=state)
        traces = [decode(pair[0], recorded, prompt, max_new=40) for _ in range(2)]
        calls[state] = [sum(1 + step.draft_calls for step in trace.steps) for trace in traces]
    assert calls["cold"][0] == calls["cold"][1] == calls["task"][0] > calls["task"][1]


def test_the_paper_keeps_the_pool_out_while_the_window_fills(pair):
    for policy, sources in (("paper", {"draft"}), (ONLY_CHAIN, {"draft", "phrase"})):
        drafter = ready(pair[1], policy=policy, window_size=2, ngram_size=7, gamma=4)
        tokens = prompt_of(5)
        truth = drafter.propose(tokens, 20).tokens[1:]
        drafter.reset(argmax)
        for key, at in ((tokens[-1], 0), (truth[0], 1)):
            drafter.pool.add(key, truth[at : at + 3])
        tree = drafter.propose(tokens, 20)
        assert {tree.source[node] for node in chain_of(tree)} == sources


def test_an_unsure_draft_stops(pair):
    tokens = prompt_of(12, 3)
    quiet = {"recall": 0, "root_phrases": False, "runner_up": 0.0, "prompt_phrases": False}
    lengths = []
    for floor in (0.0, 0.5, 0.99):
        drafter = ready(
            pair[1], gamma=9, window_size=0, topk=0, options={**quiet, "stop_below": floor}
        )
        lengths.append(len(drafter.propose(tokens, 20)) - 1)
    assert lengths[0] == 9 > lengths[1] >= lengths[2] >= 1


def branched(drafter: Ouroboros, tree: TokenTree, ranks: list[Rank], budget: int) -> TokenTree:
    """The tree with branches to the draft's second choices."""
    growing = tree.growing()
    drafter._runners_up(growing, ranks, budget)
    return TokenTree.grown(growing)


def test_the_runner_up_becomes_a_branch_where_it_is_likely(pair):
    drafter = ready(pair[1], options={"runner_up": 0.1, "max_nodes": 9})
    tree = TokenTree.chain(5, [1, 2, 3])
    drafter._chain = 3
    drafter.pool.add(7, (8, 9))
    ranks = [Rank(1, 0.9, 7, 0.1), Rank(2, 0.5, 6, 0.4), Rank(3, 0.5, 4, 0.2)]
    grown = branched(drafter, tree, ranks, 20)
    assert grown.tokens[4:] == (7, 8, 9, 6) and grown.parents[4:] == (0, 4, 5, 1)
    assert grown.source[4:] == ("runner-up",) * 4
    short = branched(drafter, tree, ranks, 3)
    assert short.tokens[4:] == (7, 8, 6)


def test_recall_drafts_from_the_pool_without_the_draft_model(pair):
    drafter = ready(pair[1], options={"recall": 3, "stop_below": 0.0})
    tokens = [4, 5, 6, 7, 8, 9, 10, 3, 4, 5, 6]
    calls = pair[1].calls
    tree = drafter.propose(tokens, 20)
    assert tree.source[1] != "recall" and pair[1].calls > calls
    repeated = [4, 5, 6, 7, 8, 9, 10, 4, 5, 6, 7]
    drafter.reset(argmax)
    calls = pair[1].calls
    tree = drafter.propose(repeated, 20)
    assert pair[1].calls == calls
    drafted = [tree.tokens[node] for node in chain_of(tree)]
    assert drafted[:3] == [8, 9, 10] and set(tree.source[1:4]) == {"recall"}
    for budget in (1, 2, 3):
        assert drafter.propose(repeated, budget).draft_depth() <= budget - 1


def test_watched_remembers_the_accepted_path_only(pair):
    target = pair[0]
    tree = TokenTree((5, 1, 2, 3), (-1, 0, 1, 0), frozenset([3]))
    logits = target.score([4, 5], tree)
    watched = Watched(argmax)
    assert watched(logits, [4, 5], tree) == argmax(logits, [4, 5], tree)
    chosen = [*watched.choose(logits, [4, 5], tree), -1]
    assert [rank.token for rank in watched.ranks] == [chosen[n] for n in tree.longest_match(chosen)]


def test_the_named_policies():
    assert OURS.runner_up > 0 and not PAPER.context
    draft = CachedModel(llama())
    assert Ouroboros(draft, **SIZES).policy == OURS
    assert Ouroboros(draft, **SIZES, policy="paper").policy == PAPER
    changed = Ouroboros(draft, **SIZES, policy="paper", options={"agreements": 1}).policy
    assert changed == replace(PAPER, agreements=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gamma": 0}, "gamma 0 must be at least 1"),
        ({"topk": -1}, "topk -1 at least 0"),
        ({"ngram_size": 1}, "at least"),
        ({"window_size": -1}, "window_size is -1"),
        ({"policy": "upstream"}, "policy 'upstream' is not"),
        ({"pool_state": "warm"}, "'warm' is not one of cold, task, loaded"),
        ({"pool_state": "loaded"}, "needs a pool: give pool=PhrasePool.load"),
    ],
)
def test_impossible_settings_are_refused(pair, changes, reason):
    with pytest.raises(ValueError, match=reason):
        Ouroboros(pair[1], **{**SIZES, **changes})
