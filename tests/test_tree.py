"""Trees against brute force, and their masks against the rules that the methods publish."""

from __future__ import annotations

import doctest
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ouroboros import tree as tree_module
from ouroboros.drafters.lookahead import Window
from ouroboros.tree import TokenTree, TreeBuilder

CHAIN_AND_FORK = """
T F F F F
T T F F F
T T T F F
T T F T F
T F F F T
"""
WINDOW_3_BY_3 = """
T F F F F F F F F
T T F F F F F F F
T T T F F F F F F
T F F T F F F F F
T T F F T F F F F
T T T F F T F F F
T F F T F F T F F
T T F F T F F T F
T T T F F T F F T
"""
DRAFT_2_WITH_2_SUFFIXES_OF_2 = """
T F F F F F F
T T F F F F F
T T T F F F F
T T T T F F F
T T T T T F F
T T T F F T F
T T T F F T T
"""


def picture(mask: np.ndarray) -> str:
    rows = (" ".join("T" if cell else "F" for cell in row) for row in mask)
    return "\n" + "\n".join(rows) + "\n"


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


def words(tree: TokenTree, *, probe: bool) -> set[tuple[int, ...]]:
    """The token strings that can be read from the root along nodes of one kind."""
    found = set()
    for node in range(len(tree)):
        path = lineage(tree, node)[1:]
        if all((n in tree.probe) == probe for n in path):
            found.add(tuple(tree.tokens[n] for n in path))
    return found


def hung(window: Window, builder: TreeBuilder) -> TokenTree:
    """The tree with the window's cells."""
    window.hang(builder)
    return builder.build()


def test_docstrings_hold():
    result = doctest.testmod(tree_module)
    assert result.attempted and not result.failed


def test_a_chain_and_a_fork_as_a_picture():
    tree = TokenTree.chain(7, [1, 2]).graft([(1, 3), (4,)])
    assert picture(tree.ancestors()) == CHAIN_AND_FORK
    assert tree.depths().tolist() == [0, 1, 2, 2, 1]


def test_lookahead_window_as_a_picture():
    window = Window(size=3, ngram_size=4)
    window.rows = [[9, 1, 2], [3, 4, 5], [6, 7, 8]]
    tree = hung(window, TreeBuilder(9))
    assert tree.tokens == (9, 1, 2, 3, 4, 5, 6, 7, 8)
    assert picture(tree.ancestors()) == WINDOW_3_BY_3
    assert tree.probe == frozenset(range(1, 9))
    assert tree.read == {6, 7, 8} and tree.logit_nodes == (0, 6, 7, 8)


def test_ouroboros_verification_as_a_picture():
    tree = TokenTree.chain(0, [1, 2]).graft([(3, 4), (5, 6)], at=2)
    assert picture(tree.ancestors()) == DRAFT_2_WITH_2_SUFFIXES_OF_2


SHAPES = [
    (n, w, g) for n in range(2, 9) for w in (1, 2, 3, 5, 8, 15) for g in (0, 1, 3, 7) if w or g
]


@pytest.mark.parametrize("ngram_size", range(2, 9))
def test_lookahead_masks_follow_the_published_rule(ngram_size):
    """(r, c) sees row 0 up to column c and rows 1 to r of its own column; guesses, their prefix."""
    for n, w, g in (shape for shape in SHAPES if shape[0] == ngram_size):
        window = Window(size=w, ngram_size=n)
        window.rows = [[50 + r * w + c for c in range(w)] for r in range(n - 1)]
        guesses = [[1000 + i * n + j for j in range(n - 1)] for i in range(g)]
        builder = TreeBuilder(50)
        builder.graft(guesses)
        tree = hung(window, builder)
        assert len(tree) == (w + g) * (n - 1)
        where: dict[object, int] = {tree.tokens[node]: node for node in range(len(tree))}
        expected = np.zeros((len(tree), len(tree)), dtype=bool)
        depths = np.zeros(len(tree), dtype=int)
        for r, c in itertools.product(range(n - 1), range(w)):
            node = where[window.rows[r][c]]
            depths[node] = r + c
            for column in range(c + 1):
                expected[node, where[window.rows[0][column]]] = True
            for row in range(1, r + 1):
                expected[node, where[window.rows[row][c]]] = True
        for guess in guesses:
            for j, token in enumerate(guess):
                expected[where[token], [0, *(where[t] for t in guess[: j + 1])]] = True
                depths[where[token]] = j + 1
        assert (tree.ancestors() == expected).all(), (n, w, g)
        assert (tree.depths() == depths).all(), (n, w, g)
        read = set(map(where.get, window.rows[-1])) - {0}
        assert set(tree.logit_nodes) == {0, *map(where.get, itertools.chain(*guesses))} | read


@pytest.mark.parametrize("gamma", [0, 1, 2, 5, 12])
def test_ouroboros_masks_follow_the_published_rule(gamma):
    """Each of K suffixes sees the whole draft chain and its own prefix, no other suffix."""
    for k, length in itertools.product((0, 1, 3, 6), (1, 2, 4, 6)):
        suffixes = [[1000 + i * length + j for j in range(length)] for i in range(k)]
        tree = TokenTree.chain(0, range(1, gamma + 1)).graft(suffixes, at=gamma)
        chain, size = gamma + 1, gamma + 1 + k * length
        expected = np.zeros((size, size), dtype=bool)
        expected[:chain, :chain] = np.tri(chain, dtype=bool)
        expected[chain:, :chain] = True
        for i in range(k):
            block = slice(chain + i * length, chain + (i + 1) * length)
            expected[block, block] = np.tri(length, dtype=bool)
        assert (tree.ancestors() == expected).all()
        assert tree.depths().tolist() == [*range(chain), *[*range(chain, chain + length)] * k]


@given(trees())
def test_ancestors_depths_and_paths_are_those_of_the_parents(tree):
    for node in range(len(tree)):
        path = lineage(tree, node)
        assert tree.path_to(node) == path
        assert tree.depths()[node] == len(path) - 1
        assert set(np.flatnonzero(tree.ancestors()[node])) == set(path)
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
    assert found in confirmed
    assert len(found) == max(map(len, confirmed))


@given(trees(), st.integers(0, 6))
def test_pruned_keeps_exactly_the_shallow_nodes(tree, limit):
    pruned = tree.pruned(limit)
    kept = [node for node in range(len(tree)) if len(lineage(tree, node)) - 1 <= limit]
    assert pruned.tokens == tuple(tree.tokens[node] for node in kept)
    assert (pruned.ancestors() == tree.ancestors()[np.ix_(kept, kept)]).all()
    assert {kept[node] for node in pruned.probe} == tree.probe & set(kept)
    assert {kept[node] for node in pruned.read} == tree.read & set(kept)
    if tree.source:
        assert pruned.source == tuple(tree.source[node] for node in kept)


branches = st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=4)


@given(trees(), branches, st.booleans())
def test_graft_adds_the_branches_and_nothing_else(tree, below, probe):
    """At the root, a tree without repeated siblings is the set of its words."""
    grafted = tree.graft(below, source="new", probe=probe)
    assert grafted.tokens[: len(tree)] == tree.tokens
    assert grafted.parents[: len(tree)] == tree.parents
    added = {tuple(branch[:end]) for branch in below for end in range(len(branch) + 1)}
    assert words(grafted, probe=probe) >= words(tree, probe=probe) | added
    assert words(grafted, probe=not probe) == words(tree, probe=not probe)
    for node in range(len(tree), len(grafted)):
        word = tuple(grafted.tokens[n] for n in lineage(grafted, node)[1:])
        assert word in added and grafted.source[node] == "new"
        assert (node in grafted.probe) == probe
    assert grafted.read == tree.read


@given(trees(), branches, branches, st.data())
def test_what_grows_is_a_valid_tree(tree, below, probes, data):
    """A grown tree skips the checks: its fields, given anew, pass them and derive the same."""
    builder = tree.builder()
    for some, probe in ((below, False), (probes, True)):
        at = data.draw(st.integers(0, len(builder) - 1))
        builder.graft(some, at, source="new", probe=probe)
    parents = [data.draw(st.integers(0, len(builder) - 1)) for _ in range(3)]
    builder.add_probes([1, 1, 0], parents, "window")
    builder.read.add(len(builder) - 1)
    grown = builder.build()
    anew = TokenTree(grown.tokens, grown.parents, grown.probe, grown.source, grown.read)
    assert anew == grown and anew.children == grown.children
    assert (anew.depths() == grown.depths()).all()
    assert grown.tokens[-3:] == (1, 1, 0) and set(range(len(grown) - 3, len(grown))) <= grown.probe


def test_a_chain_grows_from_its_root():
    builder = TreeBuilder(7)
    builder.chain([1, 2], ["draft", "phrase"])
    builder.graft([(1, 3), (1, 2, 4)], source="suffix")
    tree = builder.build()
    assert tree == TokenTree(
        (7, 1, 2, 3, 4), (-1, 0, 1, 1, 2), source=("", "draft", "phrase", "suffix", "suffix")
    )
    assert tree.has_children(1) and not tree.has_children(4)


@given(trees(), branches, st.data())
def test_graft_below_a_node_merges_shared_prefixes(tree, below, data):
    at = data.draw(st.integers(0, len(tree) - 1))
    grafted = tree.graft(below, at=at)
    fresh = range(len(tree), len(grafted))
    siblings = [(grafted.parents[n], grafted.tokens[n]) for n in fresh]
    assert len(set(siblings)) == len(siblings)
    assert all(at in lineage(grafted, node) for node in fresh)
    for branch in below:
        node = {at}
        for token in branch:
            node = {
                n
                for n in range(1, len(grafted))
                if grafted.parents[n] in node
                and grafted.tokens[n] == token
                and n not in grafted.probe
            }
        assert node
    assert grafted.graft(below, at=at).tokens == grafted.tokens


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


def test_a_tree_made_of_what_is_known_to_be_right_is_the_checked_one():
    tokens, parents, depths = (4, 1, 2, 3, 5), (-1, 0, 1, 0, 3), (0, 1, 2, 1, 2)
    made = TokenTree.from_nodes(tokens, parents, depths, logit_nodes=[1, 4])
    checked = TokenTree(tokens, parents)
    assert made.depths().tolist() == checked.depths().tolist() == list(depths)
    assert (made.ancestors() == checked.ancestors()).all() and made.logit_nodes == (1, 4)
    assert made.children == checked.children and not made.is_chain
