"""The tree against all trees, and what of it is worth its cost."""

import numpy as np
import pytest
from growing_texts import chain_text, depths, growth, path_of, ranking, step

from ouroboros.drafters.draft_tree.feedback import EXPECTED, TREE_DECAY
from ouroboros.drafters.draft_tree.grow import (
    CALL_FACTOR,
    MAX_PHRASE_HITS,
    MIN_REACH,
    MIN_WORTH,
    make_node,
    nodes_to_verify,
    plan_draft_call,
    rate,
)
from ouroboros.drafters.draft_tree.state import SIZES


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
                s.child_node[node, j] = make_node(s, grown.memory, s.child_token[node, j], node)
                assert s.child_node[node, j] > 0
            tokens = (*path, int(s.child_token[node, j]))
            found += all_paths(grown, int(s.child_node[node, j]), tokens, below)
    return found


@pytest.mark.parametrize("max_nodes", [1, 2, 9, 64])
@pytest.mark.parametrize("vocab", [3, 30])
def test_the_tree_holds_the_likeliest_nodes_of_all(vocab, max_nodes):
    text = chain_text(300, vocab)
    grown = growth(max_nodes=max_nodes, call=9.0)
    grown.start()
    for known in (120, 121, 150):
        grown.begin(text[:known], 4, -1)
        s = grown.state
        own = [
            (float(s.reach[node]), tuple(path_of(grown, node)[1:]))
            for node in map(int, s.order[: int(s.tree_size)])
        ]
        every = sorted(all_paths(grown), key=lambda one: -one[0])
        assert [reach for reach, _ in own] == [reach for reach, _ in every[:max_nodes]]
        last = own[-1][0]
        assert {one for one in own if one[0] > last} == {one for one in every if one[0] > last}
        assert len({tokens for _, tokens in own}) == len(own) <= max_nodes


@pytest.mark.parametrize("trust", [1.0, 0.3])
@pytest.mark.parametrize("slope", [0.0, 0.02, 0.2])
def test_what_is_verified_pays_best(slope, trust):
    text = chain_text(300, 10)
    grown = growth(call=9.0)
    grown.set_costs([1 + slope * n for n in range(64)], [9.0])
    grown.start()
    grown.begin(text[:200], 20, -1)
    s = grown.state
    s.trust = trust
    size = nodes_to_verify(s)
    worth = [
        trust * sum(float(s.reach[s.order[i]]) for i in range(1, n))
        - rate(s) * float(s.verify_cost[n])
        for n in range(1, int(s.tree_size) + 1)
    ]
    assert worth[size - 1] == pytest.approx(max(worth))
    if slope == 0.0:
        assert size == s.tree_size


def test_the_draft_is_asked_while_it_pays_and_never_twice():
    text = chain_text(400, 12)
    for call, expected in ((0.05, True), (5.0, False)):
        grown = growth(call=call)
        grown.start()
        count = grown.begin(text[:200], 20, 20)
        assert (count > 0) == expected
        fed = 0
        while count:
            nodes, asked = grown.draft_tree(), count
            assert len(nodes.tokens) == fed + asked
            assert all(parent < node for node, parent in enumerate(nodes.parents))
            assert max(depths(nodes.parents)) < 20
            fed += asked
            count = grown.add_rankings(*ranking(nodes, asked, 12))
        s = grown.state
        scored = [n for n in range(int(s.made)) if s.scored[n]]
        assert sorted(int(s.draft_row[n]) for n in scored) == list(range(fed))
        assert plan_draft_call(grown.state) == 0


def best_worth(s, nodes) -> float:
    """What the best number of nodes is worth, each (reached with p, there with a chance)."""
    found = -rate(s) * float(s.verify_cost[1])
    value, size = 0.0, 1.0
    for reached, there in sorted(nodes, key=lambda node: -node[0]):
        value, size = value + s.trust * reached * there, size + there
        if size > s.max_nodes:
            break
        cost = np.interp(size, range(1, SIZES), s.verify_cost[1:SIZES])
        found = max(found, value - rate(s) * float(cost))
    return found


@pytest.mark.parametrize(
    ("steps", "max_depth"), [(0.0, 20), (0.02, 20), (0.4, 20), (0.0, 2), (0.02, 3)]
)
def test_what_is_asked_pays_best_with_what_verifying_it_costs(steps, max_depth):
    text = chain_text(300, 12)
    grown = growth(call=0.05)
    grown.set_costs([1 + steps * (n // 3) for n in range(64)], [0.01 + 0.01 * n for n in range(64)])
    grown.start()
    s, counts = grown.state, set()
    for known in range(100, 112):
        s.accepted = s.expected * (1.0, 0.5)[known // 2 % 2]
        grown.begin(text[:known], max_depth, 20)
        share = MIN_WORTH * rate(s) * s.node_cost * s.expected / s.accepted
        assert float(s.floor) == pytest.approx(max(MIN_REACH, share))
        if known % 2:
            s.phrase_hits = s.phrase_trials
        count = plan_draft_call(s)
        tree = [(float(s.reach[node]), 1.0) for node in s.order[1 : s.tree_size]]
        finds, hits = s.finds / s.find_trials, min(s.phrase_hits / s.phrase_trials, MAX_PHRASE_HITS)
        worth, hoped = [0.0], list(tree)
        for node in s.order[: s.tree_size]:
            own = s.child_prob[node, : s.children[node]]
            reached = float(s.reach[node] * finds)
            depth = int(s.depth[node])
            full = depth >= max_depth or len(worth) > s.draft_nodes
            if s.scored[node] or reached <= s.floor or full:
                continue
            while reached > s.floor and sum(own) < 1 and depth < max_depth:
                hoped.append((reached, 1 - float(sum(own))))
                reached, depth = reached * hits, depth + 1
            more = CALL_FACTOR * (best_worth(s, hoped) - best_worth(s, tree))
            worth.append(more - rate(s) * float(s.draft_cost[len(worth)]))
        assert worth[count] == pytest.approx(max(worth), abs=1e-9)
        counts.add(count)
    assert len(counts) > 1 or (counts == {0} and steps > 0.1)


def test_a_tree_counts_by_what_came_of_those_before():
    text = chain_text(300, 12)
    sizes = {}
    for accepted in (9.0, 5.0, 2.0, 0.0):
        grown = growth()
        grown.start()
        grown.state.accepted = accepted
        grown.begin(text[:120], 20, -1)
        sizes[accepted] = len(grown.proposal().tokens)
    assert sizes[9.0] == sizes[5.0] > sizes[2.0] > sizes[0.0] >= 1
    grown = growth()
    grown.start()
    for known in range(100, 140):
        grown.begin(text[:known], 20, -1)
        grown.proposal()
        grown.learn([text[known]] + [-1] * 64, [0])
    assert grown.state.trust < 0.5, "nothing came"


def test_what_came_of_a_tree_is_compared_with_what_it_was_thought_to_hold():
    text = chain_text(300, 12)
    grown = growth()
    grown.start()
    s = grown.state
    grown.begin(text[:120], 20, -1)
    nodes = grown.proposal()
    held = sum(float(s.reach[node]) for node in s.order[1 : len(nodes.tokens)])
    assert 0 < held < len(nodes.tokens) - 1
    grown.learn([-1] * len(nodes.tokens), [0, 1])
    assert float(s.expected) == pytest.approx(EXPECTED + held)
    assert float(s.accepted) == pytest.approx(EXPECTED + 1)
    before = float(s.expected), float(s.accepted)
    grown.begin(text[:122], 0, -1)
    assert len(grown.proposal().tokens) == 1
    grown.learn([-1], [0])
    after = [TREE_DECAY * value + (1 - TREE_DECAY) * EXPECTED for value in before]
    assert [float(s.expected), float(s.accepted)] == pytest.approx(after)


def test_after_empty_trees_a_tree_is_tried_again():
    """Nodes so dear that trees end with the trust in them: without them it must come back."""
    loop = [1, 2, 3, 4, 5, 6, 7, 8] * 40
    grown = growth()
    grown.set_costs([1 + 0.4 * n for n in range(64)], [9.0])
    grown.start()
    sizes = []
    for known in range(60, 260):
        grown.begin(loop[:known], 20, -1)
        sizes.append(len(grown.proposal().tokens))
        grown.learn([0] * sizes[-1], [0])
    gone = sizes.index(1)
    assert sizes[0] > 1 and max(sizes[gone:]) > 1


def test_no_call_for_what_costs_too_much_to_verify():
    text = chain_text(400, 12)
    asked = {}
    for steep in (0.0, 9.0):
        grown = growth()
        grown.set_costs([1 + steep * n for n in range(64)], [0.05])
        grown.start()
        asked[steep] = grown.begin(text[:200], 20, 20)
    assert asked[0.0] > 0 and asked[9.0] == 0


def test_sources_and_chances_of_a_proposal():
    text = chain_text(400, 12)
    grown = growth(call=0.1)
    grown.start()
    known, names = 100, set()
    while known < 300:
        known += step(grown, text, known, vocab=12)
        made = grown.proposal()
        names |= set(made.source[1:])
        assert made.probability[0] == 1 and all(0 < p <= 1 for p in made.probability)
    assert names <= {"phrase", "recycled", "draft", "judged"} and {"phrase", "judged"} <= names


@pytest.mark.parametrize(
    ("shape", "holds"),
    [
        ({"children": 1}, lambda made: list(made.parents) == list(range(-1, len(made.tokens) - 1))),
        ({"max_nodes": 5}, lambda made: len(made.tokens) <= 5),
        ({"judge": False}, lambda made: "judged" not in made.source),
    ],
)
def test_switches(shape, holds):
    text = chain_text(400, 12)
    grown = growth(call=0.1, **shape)
    grown.start()
    known = 100
    while known < 300:
        known += step(grown, text, known, vocab=12)
        assert holds(grown.proposal())


def test_one_node_a_call():
    text = chain_text(400, 12)
    grown = growth(call=0.02, draft_nodes=1)
    grown.start()
    assert grown.begin(text[:1], 20, 20) == 1


@pytest.mark.parametrize("room", [0, 1, 2])
def test_no_node_beyond_the_room(room):
    text = [1, 2, 3] * 20
    grown = growth(call=0.01)
    grown.start()
    count = grown.begin(text, room, 50)
    while count:
        nodes, asked = grown.draft_tree(), count
        assert max(depths(nodes.parents)) < room
        count = grown.add_rankings(*ranking(nodes, asked, 64))
    assert max(depths(grown.proposal().parents)) <= room


def test_wrong_shapes_are_refused():
    for shape in ({"max_nodes": 0}, {"max_nodes": 10_000}, {"children": 6}, {"draft_nodes": 0}):
        with pytest.raises(ValueError):
            growth(**shape)


@pytest.mark.parametrize(
    ("max_depth", "draft_depth", "deepest"), [(0, 20, -1), (20, -1, -1), (2, 20, 1), (20, 1, 1)]
)
def test_nothing_is_asked_after_which_nothing_fits(max_depth, draft_depth, deepest):
    grown = growth(call=0.0)
    grown.start()
    count, found = grown.begin(chain_text(400, 12)[:200], max_depth, draft_depth), -1
    while count:
        nodes = grown.draft_tree()
        found = max(found, *depths(nodes.parents)[-count:])
        count = grown.add_rankings(*ranking(nodes, count, 12))
    assert found == deepest


def test_what_the_index_says_already_is_asked_only_of_a_judge():
    loop = list(range(12)) * 20
    asked = {}
    for judge in (True, False):
        grown = growth(judge=judge, call=0.001)
        grown.start()
        asked[judge] = grown.begin(loop, 20, 20)
    assert asked[True] > 0 and asked[False] == 0
