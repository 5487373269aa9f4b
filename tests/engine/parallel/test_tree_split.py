"""Subtrees contain all ancestors, cover the tree, own each logit node once, and are balanced."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ouroboros.core.tree import TokenTree
from ouroboros.engine.parallel.tree_split import assign_owners, cut

TREES = st.lists(st.integers(0, 1 << 20), min_size=0, max_size=24).map(
    lambda draws: TokenTree(
        tuple(range(len(draws) + 1)), (-1, *(draw % (n + 1) for n, draw in enumerate(draws)))
    )
)
LOADS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@settings(max_examples=60)
@given(TREES, LOADS, st.randoms())
def test_parts_are_closed_and_complete_and_each_choice_is_told_once(tree, loads, draw):
    asked = draw.sample(range(len(tree)), draw.randint(1, len(tree)))
    tree = tree.with_logits_at(asked)
    parts = assign_owners(tree, cut(tree, loads))
    assert len(parts) == len(loads)
    for part in parts:
        assert part.nodes[0] == 0 and list(part.nodes) == sorted(set(part.nodes))
        assert all(tree.parents[node] in part.nodes for node in part.nodes[1:])
        assert set(part.owned) <= set(part.nodes)
        own = part.of(tree)
        assert len(own) == len(part.nodes) and len(own.logit_nodes) == max(1, len(part.owned))
        for new, node in enumerate(part.nodes):
            assert [part.nodes[n] for n in own.path_to(new)] == tree.path_to(node)
    assert {node for part in parts for node in part.nodes} == set(range(len(tree)))
    assert sorted(node for part in parts for node in part.owned) == sorted(asked)


@settings(max_examples=40)
@given(TREES)
def test_the_rank_with_most_has_no_more_than_any_cut_of_the_leaves_gives(tree):
    """Brute force over every place to cut the leaves in two, in depth-first order."""
    found = max(len(part) for part in cut(tree, [0, 0]))
    leaves = [n for n in range(len(tree)) if n not in tree.parents]
    leaves.sort(key=lambda leaf: tree.path_to(leaf))  # children ascend: depth first
    best = len(tree)
    for at in range(len(leaves) + 1):
        sides = [
            {n for leaf in side for n in tree.path_to(leaf)} for side in (leaves[:at], leaves[at:])
        ]
        best = min(best, max(map(len, sides)))
    assert found == best


def test_a_rank_that_must_catch_up_gets_less():
    star = TokenTree(tuple(range(21)), (-1, *[0] * 20))
    light, heavy = cut(star, [0, 8])
    assert len(light) - 1 + len(heavy) - 1 == 20 and len(light) == len(heavy) + 8
