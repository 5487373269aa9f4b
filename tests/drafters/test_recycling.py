"""The rows and trees of Token Recycling and RACER, worked out by hand."""

import numpy as np
import pytest
from ouroboros.baselines import Racer, TokenRecycling
from ouroboros.baselines.recycling import PATHS, template

from ouroboros.core.select import Ranked, argmax
from ouroboros.core.tree import TokenTree


def ranked(ids: list[list[int]], shares: list[list[float]] | None = None) -> Ranked:
    """Rows of token ids, equally spaced in probability unless `shares` say otherwise."""
    table = np.array(ids)
    given = -np.arange(table.shape[1]) * np.ones((len(ids), 1)) if shares is None else shares
    return Ranked(table, np.array(given), np.array(given))


def row(first: int) -> list[int]:
    return [first + rank for rank in range(8)]


@pytest.mark.parametrize("nodes", [1, 2, 7, 24, 80])
def test_a_tree_is_the_published_one_or_a_part_of_it_with_parents_first(nodes):
    depths = [sum(len(path) == depth for path in PATHS) for depth in range(1, 7)]
    assert depths == [8, 21, 25, 15, 8, 3] and len(PATHS) == 80
    paths = []
    for parent, rank in template(nodes):
        paths.append((paths[parent] if parent >= 0 else "") + str(rank))
    assert len(set(paths)) == nodes and set(paths) <= set(PATHS)
    assert paths[0] == "0"


def test_the_matrix_after_a_step_made_by_hand():
    """The tree 5 - 6 - 7 with a second child 6 - 5: of the two nodes with token 5 the accepted one
    counts, of others the last; a probe that was not asked leaves its row alone."""
    drafter = TokenRecycling()
    drafter.reset(argmax)
    tree = TokenTree((5, 6, 7, 5, 7, 9), (-1, 0, 1, 1, 0, 0), probe=frozenset({5}))
    rows = [row(10), row(20), row(30), row(40), row(50)]
    drafter.observe_ranked(tree, ranked(rows), [0, 1])
    assert drafter.rows == {5: row(10), 6: row(20), 7: row(50)}
    drafter.observe_ranked(tree, ranked([row(60), *rows[1:]]), [0, 1, 3])
    assert drafter.rows[5] == row(40)


def test_rows_are_in_the_order_of_probability_not_of_one_positions_noise():
    drafter = TokenRecycling()
    drafter.reset(argmax)
    drafter.observe_ranked(
        TokenTree.chain(1, []), ranked([row(10)], [[0.1, 0.3, 0.2, 0, 0, 0, 0, 0]]), [0]
    )
    assert drafter.rows[1] == [11, 12, 10, 13, 14, 15, 16, 17]


def learned(drafter, rows: dict[int, list[int]]):
    drafter.reset(argmax)
    for token, ids in rows.items():
        drafter.observe_ranked(TokenTree.chain(token, []), ranked([ids]), [0])
    return drafter


def branches(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[n] for n in tree.path_to(node)[1:]) for node in range(1, len(tree))}


def test_the_tree_is_drawn_from_the_rows_that_are_known():
    drafter = learned(TokenRecycling(), {1: [2, 3, *row(20)[:6]], 2: [1, 4, *row(30)[:6]]})
    found = branches(drafter.propose([9, 1], 99))
    roots = [2, 3, *row(20)[:6]]
    wanted = {(token,) for token in roots} | {(2, token) for token in [1, 4, *row(30)[:6]]}
    assert wanted <= found and (2, 1, 2, 1, 2, 1) in found
    assert all(path[0] == 2 for path in found if len(path) > 1)  # 3 was never scored
    assert max(map(len, branches(drafter.propose([9, 1], 3)))) == 2
    assert len(drafter.propose([9, 3], 99)) == 1


def test_a_prompt_is_read_newest_first():
    for drafter in (TokenRecycling(read_prompt=True), Racer(read_prompt=True)):
        drafter.reset(argmax)
        drafter.propose([1, 2, 1, 3, 1, 2, 1, 4, 9], 1)
        assert drafter.rows[1] == [4, 2, 3]


@pytest.mark.parametrize("make", [TokenRecycling, Racer])
def test_state_task_keeps_what_cold_forgets(make):
    for state, kept in (("cold", False), ("task", True)):
        drafter = learned(make(state=state), {1: row(20)})
        drafter.reset(argmax)
        assert (len(drafter.propose([9, 1], 9)) > 1) == kept


def test_racer_keeps_texts_with_state_task_but_does_not_read_across_their_ends():
    drafter = Racer(state="task", shortest=1, breadth=0)
    drafter.reset(argmax)
    drafter.propose([1, 2, 3, 4], 9)
    drafter.reset(argmax)
    assert branches(drafter.propose([7, 2, 3], 9)) == {(4,)}
    drafter.reset(argmax)
    assert branches(drafter.propose([8, 4], 9)) == set()


def test_racer_splits_its_breadth():
    """Every token is followed by eight others of its own: the root has 8 children; child 0 of the
    root has 4, child 1 two, the rest one; below a child of the root the first gets all of that."""
    rows = {1: list(range(100, 108))}
    for first in range(8):
        rows[100 + first] = list(range(1000 + 10 * first, 1008 + 10 * first))
    for second in range(8):
        rows[1000 + second] = list(range(2000 + 10 * second, 2008 + 10 * second))
    tree = learned(Racer(nodes=500, read_prompt=False), rows).propose([9, 1], 99)
    degree = {
        tuple(tree.tokens[n] for n in tree.path_to(node)[1:]): tree.parents.count(node)
        for node in range(len(tree))
    }
    assert degree[()] == 8
    assert [degree[100 + first,] for first in range(8)] == [4, 2, 1, 1, 1, 1, 1, 1]
    assert [degree[100, 1000 + second] for second in range(4)] == [4, 2, 1, 1]
    assert set(tree.source[1:]) == {"recycled"}
    small = learned(Racer(nodes=10, read_prompt=False), rows).propose([9, 1], 99)
    assert list(small.depths()) == [0, *[1] * 8, 2, 2]


def test_racer_takes_the_most_frequent_ngrams_first_and_fills_up_with_successors():
    text = [5, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 4, 8, 1, 2]
    drafter = learned(Racer(nodes=3, ngram=4, read_prompt=False), {2: [3, 7, *row(20)[:6]]})
    tree = drafter.propose(text, 99)
    assert branches(tree) == {(3,), (3, 5), (4,)} or branches(tree) == {(3,), (3, 6), (4,)}
    assert set(tree.source[1:]) == {"prompt"}
    drafter.reset(argmax)
    drafter = learned(Racer(nodes=8, ngram=4, read_prompt=False), {2: [3, 7, *row(20)[:6]]})
    tree = drafter.propose(text, 99)
    found = branches(tree)
    assert len(found) == 8 and {(3,), (3, 5), (3, 6), (4,), (4, 8), (7,)} <= found
    assert tree.source[tree.tokens.index(7)] == "recycled"
    assert max(map(len, found)) == 2  # four tokens with the two that matched
