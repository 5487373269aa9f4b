"""Time calls of models on this machine: every tree size and context; and its memory bandwidth.

Only `CachedModel.score` and the choice of tokens are called, as the decoding loop does, so the
timing is what a step waits for. All are timed in turn, in another order each time, so that drift of
the machine affects all alike.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch

from ouroboros.costs.surface import Footprint, Surface
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import bytes_of, stored_bytes
from ouroboros.engine.static import NODES, padded_nodes, padded_slots
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

IDS = 1000  # random tokens are drawn from the first so many ids
CPU_BYTES = 512 << 20  # copy buffer: many times the largest cache
GPU_BYTES = 4 << 30  # large enough that the start of a copy takes a negligible share
COPIES = 8


def time_calls(
    models: Sequence[CachedModel],
    *,
    nodes: Sequence[int],
    contexts: Sequence[int],
    visits: int = 3,
    repeats: int = 3,
    seed: int = 0,
    padded: bool = False,
    limit_s: float = math.inf,
    on_visit: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Surface]:
    """Time `score` and its argmax on random trees; return each model's medians and spread.

    Each of the `visits` goes through the contexts and times every model and tree size there
    `repeats` times; `on_visit` is called after each context. After `limit_s` seconds no further
    visit begins. Every size is called once before, untimed. A context counts the tokens of the
    sequence, the tree's root included; they are taken as cached, since a call costs the same
    whatever its slots hold. `padded`: the models pad trees up to these very sizes. The models'
    caches are left empty. Raises `ValueError` for a context and tree beyond a model's positions.
    """
    draw, started = random.Random(seed), clock()
    trees = {size: random_tree(size, draw=draw) for size in sorted(set(nodes))}
    contexts = sorted(set(contexts))
    if not trees or not contexts or min(trees) < 1 or contexts[0] < 1:
        raise ValueError("give nodes and contexts to measure at, each 1 or more")
    deepest = max(int(tree.depths().max()) for tree in trees.values())
    positions = min(model.max_len for model in models)
    if contexts[-1] + deepest > positions:
        raise ValueError(
            f"a context of {contexts[-1]} and a tree {deepest} deep reach beyond the model's "
            f"{positions} positions: measure shorter contexts"
        )
    vocab = min(IDS, *(model.vocab_size for model in models))
    text = [draw.randrange(vocab) for _ in range(contexts[-1])]
    pairs = [(model, size) for model in models for size in trees]
    times: defaultdict[tuple, list[float]] = defaultdict(list)

    def call_ms(model: CachedModel, size: int, context: int) -> float:
        tree = TokenTree((text[context - 1], *trees[size].tokens[1:]), trees[size].parents)
        sequence = model.new_sequence(cached=text[: context - 1])
        began = clock()
        argmax(model.score(sequence, text[:context], tree), text[:context], tree)
        return 1e3 * (clock() - began)

    def quartiles(model: CachedModel) -> Surface:
        ms: defaultdict = defaultdict(dict)
        spread: defaultdict = defaultdict(dict)
        for context, size in product(contexts, trees):
            low, middle, high = map(float, np.percentile(times[model, context, size], (25, 50, 75)))
            ms[context][size], spread[context][size] = middle, (high - low) / 2
        return Surface(ms, padded, spread)

    for model in models:  # so that the cache does not grow while calls are timed
        model.cache.reserve(padded_slots(contexts[-1] + padded_nodes(max(*trees, NODES[-1]))))
        model.cache.clear()
    for model, size in pairs:
        call_ms(model, size, contexts[-1])
    for visit in range(visits):
        if visit and clock() - started > limit_s:
            break
        for context in contexts:
            for _ in range(repeats):
                for model, size in draw.sample(pairs, len(pairs)):
                    times[model, context, size].append(call_ms(model, size, context))
            on_visit()
    for model in models:
        model.empty()
    return [quartiles(model) for model in models]


def time_reading(
    model: CachedModel,
    prompts: Sequence[int],
    *,
    visits: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[float, float]:
    """Return the median milliseconds of first calls on texts of each number of tokens. The model's
    cache is left empty."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(visits):
        for tokens in prompts:
            model.empty()
            text = [token % min(IDS, model.vocab_size) for token in range(tokens)]
            root, began = TokenTree.chain(text[-1], ()), clock()
            argmax(model.score(model.new_sequence(), text, root), text, root)
            times[tokens].append(1e3 * (clock() - began))
    model.empty()
    return {tokens: float(np.median(ms)) for tokens, ms in times.items()}


def random_tree(nodes: int, *, draw: random.Random) -> TokenTree:
    """Return a random tree with distinct tokens; with three nodes or more it is no chain."""
    parents = [-1, *(draw.randrange(node) for node in range(1, nodes))]
    if nodes > 2:
        parents[2] = 0
    return TokenTree(tuple(range(nodes)), tuple(parents))


def copy_bandwidth(device: torch.device, *, buffer_bytes: int | None = None) -> float:
    """Return the bytes a second that a copy within the device's memory reads and writes together.

    The fastest of several copies counts, as in STREAM (McCalpin,
    https://www.cs.virginia.edu/stream/ref.html): other work on the machine only slows a copy down.
    On a CPU a store may read its cache line first, which is not counted, so reading alone can be
    faster than this. `buffer_bytes` defaults to many times the largest cache, on a GPU to 4 GiB, or
    a quarter of the free memory.
    """
    size = buffer_bytes or CPU_BYTES
    if buffer_bytes is None and device.type == "cuda":
        size = min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = [elapsed_ms(lambda: copy.copy_(source), device) / 1e3 for _ in range(COPIES)]
    if device.type == "cuda":  # leave the memory to CUDA graphs
        source, copy = source.new_empty(0), copy.new_empty(0)
        torch.cuda.empty_cache()
    return 2 * size / min(seconds[1:])


def elapsed_ms(work: Callable[[], object], device: torch.device) -> float:
    """Return milliseconds of some work: on a GPU between two events, else by the clock."""
    if device.type != "cuda":
        started = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - started)
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        last.synchronize()
    return first.elapsed_time(last)


def footprint(model: CachedModel) -> Footprint:
    """Return the bytes of a model's weights, as stored, and of a token's keys and values."""
    held = sum(map(stored_bytes, model.model.parameters()))
    slots = (
        len(members) * shape.kv_heads * (shape.key_width + shape.value_width) * shape.dtype.itemsize
        for shape, members in model.cache.groups.items()
    )
    return Footprint(held, bytes_of(model.model), sum(slots))
