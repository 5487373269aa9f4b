"""A tree split over several ranks gives the text of one process, whatever the split.

The ranks are threads here; test_ranks.py has processes.
"""

import copy
import itertools
import random
import threading

import numpy as np
import pytest
from ouroboros.baselines import Greedy, Speculative
from tiny import FAMILIES, RandomDrafter, cut, llama, noisy, plain, prompt_of
from together import together

from ouroboros import CachedModel, Sampler, TokenTree, argmax, decode
from ouroboros.core.processors import Processed
from ouroboros.engine.parallel import sharded
from ouroboros.engine.parallel.ranks import RankLost
from ouroboros.engine.parallel.sharded import ShardedModel

PROMPT = prompt_of(6)
STAR = TokenTree((PROMPT[-1], *range(8)), (-1, *[0] * 8))


def always():
    """Costs by which any cut pays."""
    less = itertools.count()
    return lambda nodes, context: next(less)


def anyhow(seed: int):
    """A split into random parts, closed under ancestors, that together have every node."""
    draw = random.Random(seed)

    def split(tree, loads):
        parts = [{0} for _ in loads]
        for node in range(len(tree)):
            for part in draw.sample(parts, draw.randint(1, len(parts))):
                part.update(tree.path_to(node))
        return [tuple(sorted(part)) for part in parts]

    return split


def shared(model, ranks, **options) -> ShardedModel:
    """A rank's own copy of a model."""
    return ShardedModel(CachedModel(copy.deepcopy(model)), ranks, **options)


def scored(target, tree, prompt=PROMPT, choose=argmax):
    """Score a tree; return its sequence and what was chosen."""
    sequence = target.new_sequence()
    logits = target.score(sequence, prompt, tree)
    return sequence, target.adapt_selector(choose, own_rule=False)(logits, prompt, tree)


@pytest.mark.parametrize(("ranks", "split"), [(2, None), (4, 5)])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_random_trees_and_partitions_are_lossless(family, ranks, split, monkeypatch):
    """With an end of sequence inside a part too."""
    model = family()
    truth = plain(model, prompt_of(5), 20)
    own = threading.local()  # every rank draws the same parts
    if split is not None:
        monkeypatch.setattr(sharded, "cut", lambda tree, loads: own.split(tree, loads))

    def work(rank):
        own.split = anyhow(split)
        target = shared(model, rank, call_ms=always())
        drafter = RandomDrafter(truth, seed=ranks, hit=0.8)
        rules = [(5, ()), (9, ()), *((5, {truth[end]}) for end in (6, 7, 9))]
        traces = [decode(target, drafter, truth[:n], max_new=25 - n, eos=eos) for n, eos in rules]
        assert [t.tokens for t in traces] == [cut(truth, n, 25 - n, eos) for n, eos in rules]
        assert target.exchanges == sum(len(trace.steps) for trace in traces)
        assert decode(target.alone(), Greedy(), truth[:5], max_new=4).tokens == truth[:9]
        return drafter.deepest

    assert min(together(ranks, work)) >= 3


def test_processors_and_rankings_read_their_own_nodes():
    """A repetition penalty looks at each node's path; ranked rows come back in the tree's order."""
    from transformers import RepetitionPenaltyLogitsProcessor

    model = llama(3)
    choose = Processed(
        Sampler(temperature=0.8, seed=1), [RepetitionPenaltyLogitsProcessor(1.3)], vocab=13
    )
    tree = TokenTree((PROMPT[-1], 1, 2, 3, 4, 5, 6), (-1, 0, 0, 1, 1, 2, 5))
    tree = tree.with_logits_at([0, 2, 3, 6])

    def ranked(target):
        logits = target.score(target.new_sequence(), PROMPT, tree)
        return target.adapt_selector(choose, own_rule=False).ranked(logits, PROMPT, tree, 5)

    want = ranked(CachedModel(copy.deepcopy(model)))
    for found in together(3, lambda rank: ranked(shared(model, rank, call_ms=always()))):
        assert (found.ids == want.ids).all()
        np.testing.assert_allclose(found.shares, want.shares, rtol=1e-12)
        np.testing.assert_allclose(found.scores, want.scores, rtol=1e-12)


def test_only_what_is_accepted_elsewhere_is_fed_again():
    """Two long branches over two ranks: each feeds its own, and one has to catch up."""
    model = llama()
    truth = plain(model, PROMPT, 8)
    wrong = [(t + 1) % 13 for t in truth[6:10]]
    tree = TokenTree.chain(PROMPT[-1], truth[6:10]).graft([wrong])

    def work(rank):
        target = shared(model, rank)
        sequence, chosen = scored(target, tree)
        path = tree.longest_match(chosen)
        fed, read = sequence.scored, sequence.caught_up
        target.accept(sequence, path)
        text = [*PROMPT, *truth[6:10], chosen[path[-1]]]
        root = TokenTree.chain(text[-1], ())
        choose = target.adapt_selector(argmax, own_rule=False)
        again = choose(target.score(sequence, text, root), text, root)
        return path, fed, read, sequence.caught_up - read, again

    left, right = together(2, work)
    assert left[0] == right[0] == [0, 1, 2, 3, 4]
    assert {left[1], right[1]} == {5} and left[2] == right[2] == 5
    assert sorted((left[3], right[3])) == [0, 4]
    assert left[4] == right[4] == [truth[11]]


def test_a_tree_is_cut_only_where_that_pays_and_messages_are_small():
    model = llama()

    def work(rank):
        costs = (lambda nodes, context: 1.0, lambda nodes, context: float(nodes))
        fed = [scored(shared(model, rank, call_ms=cost), STAR)[0].scored for cost in costs]
        target = shared(model, rank)
        scored(target, TokenTree((PROMPT[-1], *[1] * 63), (-1, *[0] * 63)))
        return fed, target.exchanged_bytes

    assert together(2, work) == [([9, 5], 64 * 8)] * 2


def test_a_failed_rank_fails_the_others_and_all_go_on():
    model = llama()
    want = plain(model, PROMPT, 10)

    def work(rank):
        target = shared(model, rank)
        if rank.rank == 1:
            run, calls = target.engine.call, itertools.count()

            def short(*args, **options):
                if next(calls) == 2:
                    raise MemoryError("no memory left")
                return run(*args, **options)

            target.engine.call = short
        with pytest.raises((MemoryError, RuntimeError)) as failed:
            decode(target, Greedy(), PROMPT, max_new=10)
        return str(failed.value), decode(target, Greedy(), PROMPT, max_new=10).tokens

    found = together(2, work)
    assert [text for text, _ in found] == ["rank 1 failed", "no memory left"]
    assert all(tokens == want for _, tokens in found)


def test_ranks_that_part_are_found_out():
    model = llama()
    with pytest.raises(RankLost, match="no longer score the same tree"):
        together(
            2, lambda rank: scored(shared(model, rank), TokenTree.chain(PROMPT[-1], [rank.rank]))
        )


def test_a_rule_of_a_drafters_own_is_refused():
    drafter = Speculative(CachedModel(noisy(llama())), gamma=3, verification="rejection")
    options = {"max_new": 4, "choose": Sampler(temperature=1.0)}
    with pytest.raises(ValueError, match="verification=shared"):
        together(1, lambda rank: decode(shared(llama(), rank), drafter, [5], **options))
