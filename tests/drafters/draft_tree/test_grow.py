"""The grown tree against brute force over all trees, and the nodes that are worth their cost."""

import numpy as np
import pytest
from growing_texts import chain_text, growth, path_of

from ouroboros.drafters.draft_tree import grow

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


def test_no_call_for_nodes_that_cost_too_much_to_verify():
    for steep, called in ((0.0, True), (9.0, False)):
        grown = growth()
        grown.set_costs([1 + steep * n for n in range(64)], [0.05])
        assert (grown.begin(TEXT[:200], 20, 20) is not None) == called


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
