"""What a model's calls cost here and now: timed trees, copy bandwidth, bytes.

Only `CachedModel.score` and a choice are called, as the loop calls them, so that what is timed is
what a step waits for. Invariant: sizes are timed in turn, in another order each time, so that drift
of the machine hits all alike.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ouroboros.choose import argmax
from ouroboros.costs.surface import Footprint, Surface
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import stored_bytes
from ouroboros.engine.static import padded_nodes, padded_slots
from ouroboros.tree import TokenTree

IDS = 1000  # random tokens are drawn from the first so many ids
CACHES = 16  # a copied buffer is so many times larger than the largest cache is taken to be
LARGEST_CACHE_BYTES = {"cpu": 32 << 20, "cuda": 64 << 20}


def measure(
    model: CachedModel,
    *,
    nodes: Sequence[int],
    contexts: Sequence[int],
    visits: int = 3,
    repeats: int = 3,
    seed: int = 0,
    padded: bool = False,
    on_visit: Callable[[], object] = lambda: None,
) -> Surface:
    """Time `score` and its argmax on random branching trees; return medians and their spread.

    Each of the `visits` fills the cache up to each context in turn (`on_visit` is told of each) and
    there times every size of tree `repeats` times. The first visit also calls every size once,
    untimed. A context counts the tokens of the sequence, the tree's root included. `padded` says
    that the model fills trees up to these very sizes. The model's cache is left empty.

    Raises `ValueError` for a context and tree that the model has no positions for.
    """
    draw = random.Random(seed)
    trees = {size: random_tree(size, draw=draw) for size in sorted(set(nodes))}
    contexts = sorted(set(contexts))
    _check(model, trees, contexts)
    text = [draw.randrange(min(IDS, model.vocab_size)) for _ in range(contexts[-1])]
    found: dict[int, dict[int, list[float]]] = {c: defaultdict(list) for c in contexts}
    model.tokens = []
    model.cache.reserve(padded_slots(contexts[-1] + padded_nodes(max(trees))))  # it grows no more
    for visit in range(visits):
        for context in contexts:
            tokens = text[:context]
            _call_ms(model, tokens, _rooted(trees[min(trees)], tokens))
            for size in [] if visit else trees:
                _call_ms(model, tokens, _rooted(trees[size], tokens))
            for size in (s for _ in range(repeats) for s in draw.sample(list(trees), len(trees))):
                ms = _call_ms(model, tokens, _rooted(trees[size], tokens))
                found[context][size].append(ms)
            on_visit()
    model.tokens = []
    return Surface(_table(found, np.median), padded, _table(found, _half_quartiles))


def random_tree(nodes: int, *, draw: random.Random) -> TokenTree:
    """Return a random tree with distinct tokens; with three nodes or more it is no chain."""
    parents = [-1, *(draw.randrange(node) for node in range(1, nodes))]
    if nodes > 2:
        parents[2] = 0
    return TokenTree(tuple(range(nodes)), tuple(parents))


def copy_bandwidth(device: torch.device, *, buffer_bytes: int | None = None) -> float:
    """Return how many bytes a second a copy within the device's memory reads and writes together.

    The fastest of several copies counts, as in STREAM (McCalpin,
    https://www.cs.virginia.edu/stream/ref.html): others on the machine only slow a copy down. On a
    CPU a store may read its line first, which is not counted, so that reading alone can be faster
    than this. `buffer_bytes` defaults to many times the largest cache.
    """
    size = buffer_bytes or CACHES * LARGEST_CACHE_BYTES.get(device.type, 64 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    there = torch.empty_like(source)
    seconds = []
    for _ in range(8):
        _wait(device)
        started = time.perf_counter()
        there.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * size / min(seconds[1:])


def footprint(model: CachedModel) -> Footprint:
    """Return the bytes of a model's weights, as they are stored, and of a token's keys and values.

    Every weight is taken to be read in a call but the input embedding, unless it is the output head
    too. (Of a mixture of experts less may be read.)
    """
    embedding = model.model.get_input_embeddings().weight
    head = model.model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    held = sum(map(stored_bytes, model.model.parameters()))
    unread = 0 if tied else stored_bytes(embedding)
    slots = (
        len(members) * shape.kv_heads * (shape.key_width + shape.value_width) * shape.dtype.itemsize
        for shape, members in model.cache.groups.items()
    )
    return Footprint(held, held - unread, sum(slots))


def _check(model: CachedModel, trees: dict[int, TokenTree], contexts: Sequence[int]) -> None:
    if not trees or not contexts or min(trees) < 1 or contexts[0] < 1:
        raise ValueError("give nodes and contexts to measure at, each 1 or more")
    deepest = max(int(tree.depths().max()) for tree in trees.values())
    if contexts[-1] + deepest > model.max_len:
        raise ValueError(
            f"a context of {contexts[-1]} and a tree {deepest} deep reach beyond the model's "
            f"{model.max_len} positions: measure shorter contexts"
        )


def _rooted(tree: TokenTree, tokens: Sequence[int]) -> TokenTree:
    return TokenTree((tokens[-1], *tree.tokens[1:]), tree.parents)


def _call_ms(model: CachedModel, tokens: Sequence[int], tree: TokenTree) -> float:
    """One call, with the wait for its choices; the same tokens again roll it back."""
    started = time.perf_counter()
    argmax(model.score(tokens, tree), tokens, tree)
    return 1e3 * (time.perf_counter() - started)


def _table(found: dict, of: Callable) -> dict[float, dict[float, float]]:
    return {c: {size: float(of(row[size])) for size in sorted(row)} for c, row in found.items()}


def _half_quartiles(times: Sequence[float]) -> float:
    low, high = np.percentile(times, [25, 75])
    return (high - low) / 2


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
