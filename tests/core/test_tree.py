"""Trees against brute force."""

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ouroboros.bench.report import report
from ouroboros.core import tree as tree_module
from ouroboros.core.tree import TokenTree
from ouroboros.drafters import pool


@st.composite
def trees(draw, vocab: int = 3) -> TokenTree:
    """Any tree of up to nine nodes; tokens repeat among siblings."""
    size = draw(st.integers(1, 9))
    parents = (-1, *(draw(st.integers(0, node - 1)) for node in range(1, size)))
    tokens = tuple(draw(st.integers(0, vocab - 1)) for _ in range(size))
    others = st.sampled_from(range(1, size)) if size > 1 else st.nothing()
    probe = draw(st.frozensets(others))
    read = frozenset(node for node in probe if draw(st.booleans()))
    source = tuple(f"by-{node}" for node in range(size)) if draw(st.booleans()) else ()
    return TokenTree(tokens, parents, probe, source, read)


def lineage(tree: TokenTree, node: int) -> list[int]:
    """Root first, by following parents."""
    return [] if node < 0 else [*lineage(tree, tree.parents[node]), node]


def words(tree: TokenTree) -> set[tuple[int, ...]]:
    """The token strings that can be read from the root along nodes that are no probes."""
    paths = [lineage(tree, node)[1:] for node in range(len(tree))]
    return {tuple(tree.tokens[n] for n in path) for path in paths if not tree.probe & {*path}}


@pytest.mark.parametrize("module", [tree_module, pool, report], ids=["tree", "pool", "report"])
def test_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@given(trees())
def test_ancestors_depths_and_paths_are_those_of_the_parents(tree):
    for node in range(len(tree)):
        path = lineage(tree, node)
        assert tree.path_to(node) == path
        assert tree.depths()[node] == len(path) - 1
        assert set(np.flatnonzero(tree.ancestors()[node])) == set(path)
        below = [n for n, p in enumerate(tree.parents) if p == node and n not in tree.probe]
        assert tree.has_children(node) == bool(below)
    assert tree.is_chain == all(p == n - 1 for n, p in enumerate(tree.parents))
    real = [node for node in range(len(tree)) if node not in tree.probe]
    assert tree.draft_depth() == max(len(lineage(tree, node)) - 1 for node in real)
    assert set(tree.logit_nodes) == set(real) | tree.read


@given(trees(), st.data())
def test_longest_match_is_the_longest_confirmed_path(tree, data):
    chosen = data.draw(st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree)))
    confirmed = [
        path
        for path in (lineage(tree, node) for node in range(len(tree)))
        if not tree.probe & set(path)
        and all(tree.tokens[b] == chosen[a] for a, b in itertools.pairwise(path))
    ]
    found = tree.longest_match(chosen)
    assert found in confirmed and len(found) == max(map(len, confirmed))


@given(trees(), st.integers(-1, 6))
def test_pruned_keeps_exactly_the_shallow_nodes_and_the_root(tree, limit):
    pruned = tree.pruned(limit)
    kept = [n for n in range(len(tree)) if len(lineage(tree, n)) - 1 <= max(limit, 0)]
    assert pruned.tokens == tuple(tree.tokens[node] for node in kept)
    assert (pruned.ancestors() == tree.ancestors()[np.ix_(kept, kept)]).all()
    assert {kept[node] for node in pruned.probe} == tree.probe & set(kept)
    assert {kept[node] for node in pruned.read} == tree.read & set(kept)
    if tree.source:
        assert pruned.source == tuple(tree.source[node] for node in kept)


branches = st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=4)


@given(trees(), branches, st.data())
def test_graft_adds_the_branches_merged_and_nothing_else(tree, below, data):
    at = data.draw(st.integers(0, len(tree) - 1))
    grafted = tree.graft(below, at, source="new")
    assert (grafted.tokens[: len(tree)], grafted.parents[: len(tree)]) == (
        tree.tokens,
        tree.parents,
    )
    assert (grafted.probe, grafted.read) == (tree.probe, tree.read)
    fresh = range(len(tree), len(grafted))
    siblings = [(grafted.parents[n], grafted.tokens[n]) for n in fresh]
    assert len(set(siblings)) == len(siblings)
    starts = {tuple(branch[:end]) for branch in below for end in range(len(branch) + 1)}
    for node in fresh:
        path = lineage(grafted, node)
        assert at in path and grafted.source[node] == "new"
        assert tuple(grafted.tokens[n] for n in path[path.index(at) + 1 :]) in starts
    if not at:
        assert words(grafted) == words(tree) | starts
    assert grafted.graft(below, at).tokens == grafted.tokens


@given(trees(), branches, st.data())
def test_what_is_built_is_a_valid_tree(tree, below, data):
    """A built tree skips the checks: its fields, given anew, pass them and derive the same."""
    builder = tree.builder()
    builder.graft(below, data.draw(st.integers(0, len(builder) - 1)), source="new")
    parents = [data.draw(st.integers(0, len(builder) - 1)) for _ in range(3)]
    builder.add_probes([1, 1, 0], parents, "window")
    builder.read.add(len(builder) - 1)
    built = builder.build()
    anew = TokenTree(built.tokens, built.parents, built.probe, built.source, built.read)
    assert anew == built and anew.children == built.children
    assert (anew.depths() == built.depths()).all()
    assert built.tokens[-3:] == (1, 1, 0) and set(range(len(built) - 3, len(built))) <= built.probe
    made = TokenTree.from_nodes(
        built.tokens, built.parents, built.depths(), logit_nodes=[0, len(built) - 1]
    )
    assert (made.ancestors() == anew.ancestors()).all()
    assert (made.ancestors(2) == anew.ancestors()[2:]).all()
    assert made.logit_nodes == (0, len(built) - 1) and made.is_chain == anew.is_chain


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (((), ()), "needs a root"),
        (((1, 2), (-1,)), "one parent for each"),
        (((1, 2), (0, 0)), r"parents\[0\] must be -1"),
        (((1, 2, 3), (-1, 2, 0)), "precede"),
        (((1, 2), (-1, -1)), "precede"),
        (((1, 2), (-1, 0), frozenset([0])), "root cannot be a probe"),
        (((1, 2), (-1, 0), frozenset(), ("a",)), "source"),
        (((1, 2), (-1, 0), frozenset(), (), frozenset([1])), "probes only"),
    ],
)
def test_what_is_no_tree_is_refused(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        TokenTree(*arguments)


@pytest.mark.parametrize("at", [-1, 3])
def test_a_branch_below_no_node_is_refused(at):
    with pytest.raises(ValueError, match=f"the tree has nodes 0 to 2, not {at}"):
        TokenTree.chain(7, [1, 2]).graft([[3]], at=at)
