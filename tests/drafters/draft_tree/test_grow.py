"""The grown tree against brute force over all trees, and the nodes that are worth their cost."""

from __future__ import annotations

import numpy as np
import pytest
from growing_texts import chain_text, drafts, growth, path_of
from tiny import mostly_slow

from ouroboros.drafters.draft_tree import grow
from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.state import SIZES
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower

TEXT = chain_text(400, 12)


def all_paths(grown, node=0, path=(), reach=1.0):
    """Every node below one that is likely enough, made if need be: (reach, tokens)."""
    s = grown.state
    found = [(reach, path)]
    if s.depth[node] >= s.max_depth:
        return found
    for j in range(int(s.children[node])):
        below = reach * float(s.child_prob[node, j])
        if below >= s.floor:
            if s.child_node[node, j] < 0:
                token = s.child_token[node, j]
                s.child_node[node, j] = grow.make_node(s, grown.memory, token, node)
            tokens = (*path, int(s.child_token[node, j]))
            found += all_paths(grown, int(s.child_node[node, j]), tokens, below)
    return found


@pytest.mark.parametrize("max_nodes", [1, 2, 9, 64])
@pytest.mark.parametrize("vocab", [3, 30])
def test_the_tree_holds_the_likeliest_nodes_of_all(vocab, max_nodes):
    text, grown = chain_text(300, vocab), growth(max_nodes=max_nodes, call=9.0)
    for known in (120, 121, 150):
        grown.begin(text[:known], 4, -1)
        s = grown.state
        tree = [
            (float(s.reach[node]), tuple(path_of(grown, node)[1:]))
            for node in s.order[: s.tree_size].tolist()
        ]
        every = sorted(all_paths(grown), key=lambda one: -one[0])
        assert [reach for reach, _ in tree] == [reach for reach, _ in every[:max_nodes]]
        last = tree[-1][0]
        assert {one for one in tree if one[0] > last} == {one for one in every if one[0] > last}
        assert len({tokens for _, tokens in tree}) == len(tree) <= max_nodes


@pytest.mark.parametrize("trust", [1.0, 0.3])
@pytest.mark.parametrize("slope", [0.0, 0.02, 0.2])
def test_what_is_verified_pays_best(slope, trust):
    grown = growth(call=9.0)
    grown.set_costs([1 + slope * n for n in range(64)], [9.0])
    grown.begin(TEXT[:200], 20, -1)
    s = grown.state
    s.trust = trust
    size = len(grown.proposal())
    reach = np.cumsum(s.reach[s.order[: s.tree_size]]) - 1
    worth = trust * reach - grow.tokens_per_cost(s) * s.verify_cost[1 : s.tree_size + 1]
    assert worth[size - 1] == pytest.approx(max(worth))
    assert slope or size == s.tree_size


def best_worth(s, nodes) -> float:
    """What the best number of nodes is worth, each (reached with p, there with a chance)."""
    found = -grow.tokens_per_cost(s) * float(s.verify_cost[1])
    value, size = 0.0, 1.0
    for reached, there in sorted(nodes, key=lambda node: -node[0]):
        value, size = value + s.trust * reached * there, size + there
        if size > s.max_nodes:
            break
        cost = np.interp(size, range(1, SIZES), s.verify_cost[1:SIZES])
        found = max(found, value - grow.tokens_per_cost(s) * float(cost))
    return found


def chain_worth(s) -> float:
    """What the best number of draft calls in a row from the first unscored node is worth."""
    above, node = [], next(node for node in s.order if not s.scored[node])
    reach, depth = float(s.reach[node]), int(s.depth[node])
    while node:
        above.append(float(s.reach[node]))
        node = int(s.parent[node])
    hits = s.draft_hits / s.draft_trials
    hits += grow.CHAIN_HITS * (1 - hits)
    found = [-np.inf]
    for length in range(1, min(int(s.max_depth) - depth, SIZES - 2 - len(above)) + 1):
        value = sum(above) + reach * sum(hits**k for k in range(1, length + 1))
        cost = s.verify_cost[1 + len(above) + length] + length * s.draft_cost[1]
        found.append(float(s.trust * value - grow.tokens_per_cost(s) * cost))
    return max(found[:48])


@pytest.mark.parametrize(
    ("steps", "max_depth"),
    mostly_slow(
        [(0.0, 20), (0.02, 20), (0.4, 20), (0.0, 2), (0.02, 3)], quick=[(0.4, 20), (0.02, 3)]
    ),
)
def test_draft_calls_pay_best_with_the_cost_of_verifying_what_they_add(steps, max_depth):
    grown = growth(call=0.05)
    grown.set_costs([1 + steps * (n // 3) for n in range(64)], [0.01 + 0.01 * n for n in range(64)])
    s, counts = grown.state, set()
    for known in range(100, 112):
        s.accepted = s.expected * (1.0, 0.5)[known // 2 % 2]
        grown.begin(TEXT[:known], max_depth, 20)
        share = grow.MIN_WORTH * grow.tokens_per_cost(s) * s.node_cost * s.expected / s.accepted
        assert float(s.floor) == pytest.approx(max(grow.MIN_REACH, share))
        if known % 2:
            s.phrase_hits = s.phrase_trials
        count = grow.plan_draft_call(s)
        tree = [(float(s.reach[node]), 1.0) for node in s.order[1 : s.tree_size]]
        finds = s.finds / s.find_trials
        hits = min(s.phrase_hits / s.phrase_trials, grow.MAX_PHRASE_HITS)
        worth, hoped = [0.0], list(tree)
        for node in s.order[: s.tree_size]:
            missing = 1 - float(max(s.child_prob[node, : s.children[node]], default=0.0))
            reached = float(s.reach[node] * finds)
            depth = int(s.depth[node])
            full = depth >= max_depth or len(worth) > s.draft_nodes
            if s.scored[node] or reached <= s.floor or full:
                continue
            while reached > s.floor and missing > 0 and depth < max_depth:
                hoped.append((reached, missing))
                reached, depth = reached * hits, depth + 1
            more = grow.CALL_FACTOR * (best_worth(s, hoped) - best_worth(s, tree))
            worth.append(more - grow.tokens_per_cost(s) * float(s.draft_cost[len(worth)]))
        if max(worth) <= 0:
            assert count == (chain_worth(s) > best_worth(s, tree) + 1e-12)
        else:
            assert worth[count] == pytest.approx(max(worth), abs=1e-9)
        counts.add(count)
    assert len(counts) > 1 or (counts == {0} and steps > 0.1)


@pytest.mark.parametrize(("call", "called"), [(0.05, True), (5.0, False)])
def test_the_draft_is_called_while_it_pays_and_scores_no_node_twice(call, called):
    grown, scored = growth(call=call), 0
    for draft in drafts(grown, TEXT[:200]):
        assert draft.logit_nodes == tuple(range(scored, len(draft)))
        scored = len(draft)
    assert (scored > 0) == called and grow.plan_draft_call(grown.state) == 0


def test_no_call_for_nodes_that_cost_too_much_to_verify():
    for steep, called in ((0.0, True), (9.0, False)):
        grown = growth()
        grown.set_costs([1 + steep * n for n in range(64)], [0.05])
        assert grown.begin(TEXT[:200], 20, 20) == called


def test_the_last_cost_applies_to_larger_calls():
    grown = growth(max_nodes=3)
    grown.set_costs([2.0, 3.0], [1.0])
    s = grown.state
    assert s.verify_cost[1:5].tolist() == [1.0, 1.5, 1.5, 1.5] and s.node_cost == 0.25
    assert s.draft_cost[1:4].tolist() == [0.5, 0.5, 0.5]


def test_estimates_are_trusted_by_the_outcome_of_earlier_trees():
    sizes = []
    for accepted in (9.0, 5.0, 2.0, 0.0):
        grown = growth()
        grown.state.accepted = accepted
        grown.begin(TEXT[:120], 20, -1)
        sizes.append(len(grown.proposal()))
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3] >= 1


def test_accepted_tokens_are_compared_with_those_expected():
    grown = growth()
    s = grown.state
    grown.begin(TEXT[:120], 20, -1)
    tree = grown.proposal()
    held = sum(float(s.reach[node]) for node in s.order[1 : len(tree)])
    assert 0 < held < len(tree) - 1
    grown.learn([-1] * len(tree), [0, 1])
    before = float(s.expected), float(s.accepted)
    assert before == pytest.approx((grow.EXPECTED + held, grow.EXPECTED + 1))
    grown.begin(TEXT[:122], 0, -1)
    assert len(grown.proposal()) == 1
    grown.learn([-1], [0])
    after = [grow.TREE_DECAY * value + (1 - grow.TREE_DECAY) * grow.EXPECTED for value in before]
    assert [float(s.expected), float(s.accepted)] == pytest.approx(after)


def test_after_empty_trees_a_tree_is_tried_again():
    """Nodes so dear that trees end with the trust in them: without them it must come back."""
    loop, grown, sizes = [1, 2, 3, 4, 5, 6, 7, 8] * 40, growth(), []
    grown.set_costs([1 + 0.4 * n for n in range(64)], [9.0])
    for known in range(60, 260):
        grown.begin(loop[:known], 20, -1)
        sizes.append(len(grown.proposal()))
        grown.learn([0] * sizes[-1], [0])
    gone = sizes.index(1)
    assert sizes[0] > 1 and max(sizes[gone:]) > 1


@pytest.mark.parametrize(
    ("max_depth", "draft_depth", "deepest"), [(0, 20, -1), (20, -1, -1), (2, 20, 1), (20, 1, 1)]
)
def test_no_node_is_scored_or_proposed_beyond_the_room(max_depth, draft_depth, deepest):
    grown, found = growth(call=0.0), -1
    for draft in drafts(grown, TEXT[:200], max_depth, draft_depth):
        found = max(draft.depths().tolist())
    assert found == deepest and max(grown.proposal().depths()) <= max_depth


def test_only_a_judge_scores_nodes_that_have_phrases():
    for judge in (True, False):
        grown = growth(judge=judge, call=0.001)
        assert grown.begin(list(range(12)) * 20, 20, 20) == judge
    grown = growth(call=0.02, draft_nodes=1)
    assert grown.begin(TEXT[:1], 20, 20) and len(grown.draft_tree()) == 1


@pytest.mark.parametrize("match", [1, 3])
def test_a_phrase_ends_soon_after_the_length_of_its_match(match):
    phrase = list(range(match + 40))
    grower = TreeGrower(Weights.load())
    grower.start()
    grower.set_costs([1.0], [1.0])
    grower.begin([*phrase, 99, *phrase[:match]], 60, -1)
    tree = grower.proposal()
    assert max(tree.depths()) == match + grow.BEYOND_MATCH


def test_a_node_that_the_draft_model_has_scored_begins_a_new_length():
    grown = growth(call=0.001, max_nodes=32)
    for _ in drafts(grown, [1], vocab=2):
        pass
    s = grown.state
    nodes = s.order[: s.tree_size]
    assert s.depth[nodes].max() > s.longest_match[0] + grow.BEYOND_MATCH
    for node in nodes:
        known = node
        while known > 0 and not s.scored[known]:
            known = s.parent[known]
        assert s.depth[node] - s.depth[known] <= s.longest_match[known] + grow.BEYOND_MATCH


def test_calls_that_pay_only_together_are_made():
    """Two nodes cost as much as one, three as much as nine; phrases propose one good token."""
    verify = [1.0, 1.04, *[1.4] * 62]
    for draft, called in ((0.2, True), (0.6, False)):
        grown = growth(call=draft)
        grown.set_costs(verify, [draft] * 64)
        s = grown.state
        grown.begin(TEXT[:200], 20, -1)
        s.max_draft_depth, s.tokens, s.cost, s.draft_hits = 20, 1.6, 1.0, 0.95 * s.draft_trials
        s.finds = 0.05 * s.find_trials
        assert grow.plan_draft_call(s) == called
        s.shared_rate = 1.6
        assert grow.plan_draft_call(s) == 0


def test_the_text_alone_is_credited_with_the_tokens_of_several_steps():
    grown, text = growth(vocab=12, call=0.0001), [*range(1, 9)] * 4
    for new, tokens in (([], 0), ([1], 0), ([1, 2], 0), ([1, 2, 11], 3)):
        grown.begin(text + new, 10, 10)
        assert grown.state.text_tokens == tokens
    assert grown.state.text_cost > 1


def test_the_text_alone_is_compared_only_where_the_draft_was_called():
    text = [*range(1, 9)] * 4
    for call, declined in ((9.0, False), (0.0001, True)):
        grown = growth(vocab=12, call=call)
        assert grown.begin(text, 10, 10) == declined
        if declined:
            grown.decline()
        grown.begin([*text, 1, 11], 10, 10)
        assert grown.state.text_cost == 0
