"""Proposals and learning of the published drafter; test_baselines checks that it is lossless."""

import copy

import pytest
from tiny import StepLog, prompt_of

from ouroboros import CachedModel, OuroborosPaper, PhrasePool, TokenTree, argmax
from ouroboros.calls import alone
from ouroboros.decode import RootOnly, decode, proposed

SIZES = {"gamma": 4, "window_size": 3, "ngram_size": 4, "verification_set_size": 3}


def ready(draft: CachedModel, **changes) -> OuroborosPaper:
    """A drafter after its reset, its draft model's cache unrelated."""
    drafter = OuroborosPaper(draft, **{**SIZES, **changes})
    drafter.reset(argmax)
    return drafter


def steps_of(pair, max_new: int = 40, prompt=None, **changes):
    target, draft = pair
    recorded = StepLog(OuroborosPaper(draft, **{**SIZES, **changes}))
    decode(target, recorded, prompt or prompt_of(12, 3) * 2, max_new=max_new)
    return recorded.drafter, recorded.steps


def chain_of(tree: TokenTree) -> list[int]:
    """The nodes of the draft itself: those named draft or phrase."""
    return [n for n, name in enumerate(tree.source) if name in ("draft", "phrase")]


def test_the_tree_is_a_draft_with_branches_within_the_budget(pair):
    _, steps = steps_of(pair)
    for _, budget, tree, _, _ in steps:
        draft = chain_of(tree)
        assert draft == list(range(1, len(draft) + 1)) and not tree.probe
        assert tree.parents[: len(draft) + 1] == tuple(range(-1, len(draft)))
        assert tree.draft_depth() <= budget - 1
        assert len(draft) >= min(4, budget - 1)
        below = [n for n, name in enumerate(tree.source) if name == "suffix"]
        assert all(len(draft) in tree.path_to(node) for node in below)
        assert sum(tree.parents[node] == len(draft) for node in below) <= 3
        assert set(tree.source[len(draft) + 1 :]) <= {"suffix"}


def test_the_draft_is_the_small_models_own_text(pair):
    """Lookahead drafting is lossless too: the chain is what the draft model would say alone."""
    _, steps = steps_of(pair)
    plain = CachedModel(copy.deepcopy(pair[1].model))
    for tokens, _, tree, _, _ in steps:
        draft = [tree.tokens[node] for node in chain_of(tree)]
        expected = decode(plain, RootOnly(), tokens, max_new=len(draft)).new_tokens
        assert draft == expected


def test_phrases_of_the_pool_hang_below_the_drafts_end(pair):
    drafter = ready(pair[1], window_size=0, topk=2)
    tokens = prompt_of(5)
    end = alone(proposed(drafter, tokens, 20)).tokens[-1]
    drafter.reset(argmax)
    for phrase in [(7, 7, 7), (1, 2, 3), (1, 2, 9)]:
        drafter.pool.add(end, phrase)
    tree = alone(proposed(drafter, tokens, 20))
    at = len(chain_of(tree))
    assert tree.tokens[at] == end
    assert tree.tokens[at + 1 :] == (1, 2, 9, 3)
    assert tree.parents[at + 1 :] == (at, at + 1, at + 2, at + 2)
    assert tree.source[at + 1 :] == ("suffix",) * 4
    drafter.topk = 0
    assert len(alone(proposed(drafter, tokens, 20))) == at + 1


def pretend(drafter: OuroborosPaper, tree: TokenTree, chain: int) -> None:
    """As if `propose` had given this tree, its first `chain` nodes below the root the draft."""
    drafter._draft_end, drafter._suffixes = chain, []
    drafter.pool.clear()
    for branch in (n for n in range(len(tree)) if n > chain and n not in tree.parents):
        path = tree.path_to(branch)
        if chain in path:
            phrase = tuple(tree.tokens[n] for n in path[chain + 1 :])
            drafter.pool.add(tree.tokens[chain], phrase)
            drafter._suffixes.append(phrase)


SUFFIXED = TokenTree.chain(0, [1, 2]).graft([(3, 4, 5), (6, 7, 8)], at=2, source="suffix")


@pytest.mark.parametrize(
    ("chosen", "path", "phrases"),
    [
        ([1, 2, 3, 9, 10, -1, 11, 12, -1], [0, 1, 2, 3], {(3, 9, 10), (3, 11, 12)}),
        ([4, 4, 3, 9, 10, 0, 8, 9, 0], [0], {(3, 4, 5), (6, 7, 8)}),
    ],
)
def test_verified_suffixes_are_corrected_on_full_acceptance_alone(pair, chosen, path, phrases):
    drafter = ready(pair[1])
    pretend(drafter, SUFFIXED, 2)
    drafter.observe(SUFFIXED, chosen, path)
    assert {phrase for key, phrase in drafter.pool if key == 2} == phrases


@pytest.mark.parametrize(("ngram_size", "count"), [(3, 2), (4, 1), (5, 0)])
def test_agreements_along_the_rejected_tail_make_phrases(pair, ngram_size, count):
    """Nodes 1 to 4 are rejected; the target agrees with the draft after nodes 1 and 2 only. N - 2
    agreements in a row make a phrase."""
    drafter = ready(pair[1], ngram_size=ngram_size, topk=0)
    tree = TokenTree.chain(0, [1, 2, 3, 4])
    pretend(drafter, tree, 4)
    drafter.observe(tree, [9, 2, 3, 8, 7], [0])
    made = dict(drafter.pool)
    assert len(made) == count
    if count > 0:
        assert made[1] == (2, 3, 8)[: ngram_size - 1]
    drafter.recycle = False
    drafter.pool.clear()
    drafter.observe(tree, [9, 2, 3, 8, 7], [0])
    assert len(drafter.pool) == 0


def test_a_cold_pool_is_emptied_a_task_pool_kept_and_a_loaded_one_restored(pair):
    given = PhrasePool(phrase_len=3, per_key=3)
    given.add(1, [2, 3, 4], before=[7, 8])
    given.add(1, [5, 5, 5])
    for state, left in (("cold", []), ("task", [1, 1, 9]), ("loaded", [1, 1])):
        pool = None if state == "cold" else given.state_dict()
        drafter = OuroborosPaper(pair[1], **SIZES, pool_state=state, pool=pool)
        drafter.pool.add(9, [9, 9, 9])
        for _ in range(2):
            drafter.reset(argmax)
            assert [key for key, _ in drafter.pool] == left
            assert drafter.pool.get(1, 1, before=[7, 8]) == [(2, 3, 4)][: len(left)]


def test_the_pool_stays_out_while_the_window_fills(pair):
    drafter = ready(pair[1], window_size=2, ngram_size=7, gamma=4)
    tokens = prompt_of(5)
    truth = alone(proposed(drafter, tokens, 20)).tokens[1:]
    drafter.reset(argmax)
    for key, at in ((tokens[-1], 0), (truth[0], 1)):
        drafter.pool.add(key, truth[at : at + 3])
    tree = alone(proposed(drafter, tokens, 20))
    assert {tree.source[node] for node in chain_of(tree)} == {"draft"}
