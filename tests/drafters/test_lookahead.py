"""The Jacobi window against a plain grid, and the proposals of lookahead decoding."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import StepLog, llama, plain, prompt_of

from ouroboros.core.select import argmax
from ouroboros.core.tree import TokenTree
from ouroboros.decode import decode
from ouroboros.drafters.lookahead import Lookahead, Window
from ouroboros.drafters.pool import PhrasePool
from ouroboros.engine.model import CachedModel


@pytest.fixture(scope="module")
def pair():
    model = llama()
    return model, CachedModel(copy.deepcopy(model))


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


@given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 99), st.integers(1, 9))
def test_the_window_is_the_published_grid(size, ngram_size, seed, steps):
    """Predictions are a hash of what a cell may see: a cell that sees anything else shows."""
    window = Window(size=size, ngram_size=ngram_size, seed=seed)
    window.start([3, 1, 4])
    assert len(window.rows[0]) == size + max(0, ngram_size - 2)
    assert window.rows[0][0] == 4 and set(window.rows[0]) <= {3, 1, 4}
    grid = Grid(size, ngram_size - 1, list(window.rows[0]))
    for step in range(steps):
        root = grid.rows[0][0]
        tree = hung(window, TokenTree.chain(root, [8, 8]))
        cells = grid.cells()
        assert len(tree) - 2 == len(cells)
        chosen = [guess(tree, node) for node in range(len(tree))]
        last = len(grid.rows) - 1
        predicted = [hash((root, *cells[last, c])) % 1_000_003 for c in range(len(grid.rows[last]))]
        assert window.observe(chosen, step) == grid.advance(predicted, step)
        assert window.rows == grid.rows
        assert len(window.rows) == min(ngram_size - 1, step + 2)


def hung(window: Window, tree: TokenTree) -> TokenTree:
    """The tree with the window's cells."""
    growing = tree.builder()
    window.add_to(growing)
    return growing.build()


def guess(tree: TokenTree, node: int) -> int:
    """A prediction that depends on the node's path from the root, unless the node is not asked."""
    path = tuple(tree.tokens[n] for n in tree.path_to(node))
    return hash(path) % 1_000_003 if node in tree.logit_nodes else -1


def test_a_full_step_costs_w_plus_g_times_n_minus_1_nodes():
    for w, n, g in [(5, 5, 3), (7, 3, 7), (1, 2, 1), (15, 5, 15)]:
        drafter = lookahead(w, n, g)
        drafter.reset(argmax)
        for i in range(g):
            drafter.pool.add(3, [100 + i] * (n - 1))
        drafter.window.rows = [[3] * w for _ in range(n - 1)]
        tree = drafter.propose([1, 2, 3], 99)
        assert len(tree) == (w + g) * (n - 1)
        assert tree.source.count("pool") == g * (n - 1)
        assert tree.source.count("window") == w * (n - 1) - 1


@torch.inference_mode()
def test_phrases_are_what_the_model_predicts_along_each_column(pair):
    """Every window prediction is the model's own after that column, with no cache and no tree."""
    model, cached = pair
    recorded = StepLog(lookahead(3, 4, 2))
    decode(cached, recorded, prompt_of(8), max_new=12)
    read = 0
    for tokens, _, tree, chosen, _ in recorded.steps:
        for node in tree.read:
            branch = [tree.tokens[n] for n in tree.path_to(node)[1:]]
            alone = model(torch.tensor([[*tokens, *branch]]), use_cache=False).logits[0, -1]
            assert chosen[node] == int(alone.argmax())
            read += 1
    assert read >= 20


def test_finished_ngrams_enter_the_pool():
    drafter = lookahead(2, 3, 2, pool_from_prompt=False)
    drafter.reset(argmax)
    drafter.propose([1, 2], 9)
    drafter.window.rows = [[2, 5], [6, 7]]
    tree = drafter.propose([1, 2], 9)
    chosen = [-1] * len(tree)
    chosen[0] = 4
    for node in tree.read:
        chosen[node] = tree.tokens[node] + 10
    drafter.observe(tree, chosen, [0])
    assert sorted(drafter.pool) == [(2, (6, 16)), (5, (7, 17))]
    assert drafter.window.rows == [[4, 7], [16, 17]]


def test_guesses_are_verified_from_the_first_step():
    drafter = lookahead(3, 4, 2)
    drafter.reset(argmax)
    tree = drafter.propose([5, 1, 2, 3, 5], 9)
    assert tree.tokens[1:4] == (1, 2, 3) and tree.source[1:4] == ("pool",) * 3
    late = lookahead(3, 4, 2, pool_while_filling=False)
    late.reset(argmax)
    assert "pool" not in late.propose([5, 1, 2, 3, 5], 9).source


def test_sizes_of_zero_switch_a_half_off():
    tokens = [5, 1, 2, 3, 5]
    assert not lookahead(0, 4, 2).propose(tokens, 9).probe
    tree = lookahead(2, 4, 0).propose(tokens, 9)
    assert tree.probe == frozenset(range(1, len(tree))) and tree.draft_depth() == 0


def test_guesses_stay_within_the_budget_and_the_limit():
    drafter = lookahead(0, 5, 2)
    text = [5, 1, 2, 3, 4, 5, 2, 2, 2, 2, 5, 3, 3, 3, 3, 5]
    for budget in (1, 2, 3, 9):
        tree = drafter.propose(text, budget)
        assert tree.draft_depth() == min(4, budget - 1)
        assert len(tree) == 1 + 2 * min(4, budget - 1)


def test_the_prompt_is_left_out_where_asked():
    drafter = lookahead(2, 3, 2, pool_from_prompt=False)
    drafter.reset(argmax)
    assert set(drafter.propose([5, 1, 2, 3, 5], 9).source) == {"", "window"}
    assert len(drafter.pool) == 0


def test_an_own_pool_is_emptied_and_a_shared_one_kept():
    own, shared = lookahead(2, 3, 2), lookahead(2, 3, 2, pool=PhrasePool(phrase_len=2, per_key=2))
    for drafter, left in ((own, 0), (shared, 1)):
        drafter.pool.add(1, [2, 3])
        drafter.window.start([4])
        drafter.reset(argmax)
        assert len(drafter.pool) == left and drafter.window.rows == []


def test_the_window_starts_again_where_the_context_cut_it(pair):
    model, cached = pair
    drafter = StepLog(lookahead(4, 5, 2))
    prompt = prompt_of(50)
    trace = decode(cached, drafter, prompt, max_new=99)
    assert trace.tokens[:64] == plain(model, prompt, 14) and trace.finish == "context"
    for tokens, _, tree, *_ in drafter.steps:
        assert len(tokens) + int(tree.depths().max()) <= 64


def test_the_seed_draws_the_first_row():
    def first_row(seed: int) -> list[int]:
        window = Window(size=8, ngram_size=4, seed=seed)
        window.start(list(range(50)))
        return window.rows[0]

    assert first_row(1) == first_row(1) != first_row(2)
