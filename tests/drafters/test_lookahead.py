"""The Jacobi window against a plain grid, and the proposals of lookahead decoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ouroboros import PhrasePool, TokenTree, argmax
from ouroboros.drafters.lookahead import Lookahead, Window


def lookahead(w: int, n: int, g: int, **options) -> Lookahead:
    return Lookahead(window_size=w, ngram_size=n, verification_set_size=g, **options)


class Grid:
    """The published procedure, cell by cell: rows of guesses, each cell at position p + r + c."""

    def __init__(self, size: int, height: int, row: list[int]) -> None:
        self.size, self.height, self.rows = size, height, [row]

    def cells(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Each cell's visible tokens below the root: row 0 up to its column, then the column."""
        return {
            (r, c): (*self.rows[0][1 : c + 1], *(self.rows[k][c] for k in range(1, r + 1)))
            for r in range(len(self.rows))
            for c in range(len(self.rows[r]))
        }

    def advance(self, predicted: list[int], following: int) -> list[tuple[int, ...]]:
        rows, full = [*self.rows, predicted], len(self.rows) == self.height
        ngrams = [tuple(row[c] for row in rows) for c in range(self.size)] if full else []
        self.rows = rows[1:] if full else [row[1:] for row in rows]
        self.rows[0] = [following, *self.rows[0][1:]]
        return ngrams


@given(st.integers(1, 6), st.integers(2, 7), st.integers(1, 9))
def test_the_window_is_the_published_grid(size, ngram_size, steps):
    """Predictions are a hash of what a cell may see: a cell that sees anything else shows."""
    window = Window(size=size, ngram_size=ngram_size)
    window.start([3, 1, 4])
    assert len(window.rows[0]) == size + max(0, ngram_size - 2)
    assert window.rows[0][0] == 4 and set(window.rows[0]) <= {3, 1, 4}
    grid = Grid(size, ngram_size - 1, list(window.rows[0]))
    for step in range(steps):
        root = grid.rows[0][0]
        growing = TokenTree.chain(root, [8, 8]).builder()
        window.add_to(growing)
        tree = growing.build()
        cells = grid.cells()
        assert len(tree) - 2 == len(cells)
        chosen = [guess(tree, node) for node in range(len(tree))]
        last = len(grid.rows) - 1
        predicted = [hash((root, *cells[last, c])) % 1_000_003 for c in range(len(grid.rows[last]))]
        assert window.observe(chosen, step) == grid.advance(predicted, step)
        assert window.rows == grid.rows
        assert len(window.rows) == min(ngram_size - 1, step + 2)


def guess(tree: TokenTree, node: int) -> int:
    """A prediction that depends on the node's path from the root, unless the node is not asked."""
    path = tuple(tree.tokens[n] for n in tree.path_to(node))
    return hash(path) % 1_000_003 if node in tree.logit_nodes else -1


@pytest.mark.parametrize(
    ("sizes", "options", "sources"),
    [
        ((3, 4, 2), {}, {"pool", "window"}),
        ((3, 4, 2), {"pool_while_filling": False}, {"window"}),
        ((3, 4, 2), {"pool_from_prompt": False}, {"window"}),
        ((0, 4, 2), {}, {"pool"}),
        ((2, 4, 0), {}, {"window"}),
    ],
)
def test_the_first_step_verifies_the_prompts_phrases_and_fills_the_window(sizes, options, sources):
    drafter = lookahead(*sizes, **options)
    drafter.reset(argmax)
    tree = drafter.propose([5, 1, 2, 3, 5], 9)
    assert set(tree.source[1:]) == sources
    guesses = [tree.tokens[n] for n, name in enumerate(tree.source) if name == "pool"]
    assert guesses == [1, 2, 3] * ("pool" in sources)
    assert tree.probe == {node for node, name in enumerate(tree.source) if name == "window"}


def test_guesses_stay_within_the_budget_and_the_limit():
    drafter = lookahead(0, 5, 2)
    text = [5, 1, 2, 3, 4, 5, 2, 2, 2, 2, 5, 3, 3, 3, 3, 5]
    for budget in (1, 2, 3, 9):
        tree = drafter.propose(text, budget)
        assert tree.draft_depth() == min(4, budget - 1)
        assert len(tree) == 1 + 2 * min(4, budget - 1)


def test_an_own_pool_is_emptied_and_a_shared_one_kept():
    own, shared = lookahead(2, 3, 2), lookahead(2, 3, 2, pool=PhrasePool(phrase_len=2, per_key=2))
    for drafter, left in ((own, 0), (shared, 1)):
        drafter.pool.add(1, [2, 3])
        drafter.window.start([4])
        drafter.reset(argmax)
        assert len(drafter.pool) == left and drafter.window.rows == []
