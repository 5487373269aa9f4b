"""What calls cost here and now, timed: every model, size of tree and context in turn.

Only `CachedModel.score` and a choice are called, as the loop calls them, so that what is timed is
what a step waits for. Invariant: all are timed in turn, in another order each time, so that drift
of the machine hits all alike.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ouroboros.costs.surface import Surface
from ouroboros.engine.model import CachedModel
from ouroboros.engine.static import NODES, padded_nodes, padded_slots
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

IDS = 1000  # random tokens are drawn from the first so many ids

Found = dict[int, dict[int, list[float]]]


def measure(
    models: Sequence[CachedModel],
    *,
    nodes: Sequence[int],
    contexts: Sequence[int],
    visits: int = 3,
    repeats: int = 3,
    seed: int = 0,
    padded: bool = False,
    limit_s: float = math.inf,
    on_visit: Callable[[list[Surface]], object] = lambda found: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Surface]:
    """Time `score` and its argmax on random branching trees; return each model's medians and their
    spread.

    Each of the `visits` goes through the contexts in turn (`on_visit` is told after each what was
    found so far) and there times every model and size of tree `repeats` times; after `limit_s`
    seconds no further visit begins. Before, every size is called once, untimed. A context counts
    the tokens of the sequence, the tree's root included; its tokens are taken to be cached, since a
    call costs the same whatever its slots hold. `padded` says that the models fill trees up to
    these very sizes. The models' caches are left empty.

    Raises `ValueError` for a context and tree that a model has no positions for.
    """
    draw, started = random.Random(seed), clock()
    trees = {size: random_tree(size, draw=draw) for size in sorted(set(nodes))}
    contexts = sorted(set(contexts))
    _check(models, trees, contexts)
    vocab = min(IDS, *(model.vocab_size for model in models))
    text = [draw.randrange(vocab) for _ in range(contexts[-1])]
    found: list[Found] = [{context: defaultdict(list) for context in contexts} for _ in models]
    pairs = [(index, size) for index in range(len(models)) for size in trees]
    for model in models:  # the cache grows no more
        model.cache.reserve(padded_slots(contexts[-1] + padded_nodes(max(*trees, NODES[-1]))))
        model.cache.clear()
    for index, size in pairs:
        _call_ms(models[index], text, trees[size], clock)
    for visit in range(visits):
        if visit and clock() - started > limit_s:
            break
        for context in contexts:
            for index, size in (pair for _ in range(repeats) for pair in _shuffled(pairs, draw)):
                ms = _call_ms(models[index], text[:context], trees[size], clock)
                found[index][context][size].append(ms)
            on_visit(_surfaces(found, padded))
    for model in models:
        model.tokens = []
    return _surfaces(found, padded)


def _surfaces(found: Sequence[Found], padded: bool) -> list[Surface]:
    """Medians and spread of each model, at the contexts that were visited."""
    seen = [{context: row for context, row in own.items() if row} for own in found]
    return [Surface(_table(own, np.median), padded, _table(own, _half_quartiles)) for own in seen]


def random_tree(nodes: int, *, draw: random.Random) -> TokenTree:
    """Return a random tree with distinct tokens; with three nodes or more it is no chain."""
    parents = [-1, *(draw.randrange(node) for node in range(1, nodes))]
    if nodes > 2:
        parents[2] = 0
    return TokenTree(tuple(range(nodes)), tuple(parents))


def _check(
    models: Sequence[CachedModel], trees: dict[int, TokenTree], contexts: Sequence[int]
) -> None:
    if not trees or not contexts or min(trees) < 1 or contexts[0] < 1:
        raise ValueError("give nodes and contexts to measure at, each 1 or more")
    deepest = max(int(tree.depths().max()) for tree in trees.values())
    positions = min(model.max_len for model in models)
    if contexts[-1] + deepest > positions:
        raise ValueError(
            f"a context of {contexts[-1]} and a tree {deepest} deep reach beyond the model's "
            f"{positions} positions: measure shorter contexts"
        )


def _shuffled(pairs: list[tuple[int, int]], draw: random.Random) -> list[tuple[int, int]]:
    return draw.sample(pairs, len(pairs))


def _call_ms(
    model: CachedModel, tokens: list[int], tree: TokenTree, clock: Callable[[], float]
) -> float:
    """One call after cached tokens, with the wait for its choices."""
    model.tokens = tokens[:-1]
    tree = TokenTree((tokens[-1], *tree.tokens[1:]), tree.parents)
    started = clock()
    argmax(model.score(tokens, tree), tokens, tree)
    return 1e3 * (clock() - started)


def _table(found: Found, of: Callable) -> dict[float, dict[float, float]]:
    return {c: {size: float(of(row[size])) for size in sorted(row)} for c, row in found.items()}


def _half_quartiles(times: Sequence[float]) -> float:
    low, high = np.percentile(times, [25, 75])
    return (high - low) / 2
