"""Time calls of models on this machine, by tree size and context; measure its memory bandwidth;
count the bytes of models.

A timed call is `CachedModel.score` plus token selection, as in the decoding loop. Two calls of the
draft follow each call of the target, as in a step, since they find the processor's caches as it
left them. Sizes are in random order, so that slow changes of the machine's speed affect all
equally.
"""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from scipy.optimize import isotonic_regression

from ouroboros.core.select import argmax
from ouroboros.core.tree import TokenTree
from ouroboros.costs.surface import Footprint, Surface
from ouroboros.engine.model import CachedModel
from ouroboros.engine.quantised import bytes_of, stored_bytes
from ouroboros.engine.sequence import CachedSequence
from ouroboros.engine.static import NODES, Static, padded_nodes, padded_slots

IDS = 1000  # random tokens are drawn from ids below this
CPU_BYTES = 512 << 20  # copy buffer: many times the largest cache
GPU_BYTES = 4 << 30  # large enough that the start of a copy takes a negligible share
COPIES = 8
READINGS = 3  # prefills timed of each length


def time_calls(
    models: Sequence[CachedModel],
    *,
    nodes: Sequence[int],
    contexts: Sequence[int],
    visits: int = 3,
    repeats: int = 3,
    seed: int = 0,
    limit_s: float = math.inf,
) -> list[Surface]:
    """Time `score` and its argmax on random trees; return a `Surface` of medians for each model.

    `models` are a target and an optional draft. In each of `visits` rounds, every tree size is
    timed `repeats` times at every context, and twice as often for the draft. No round begins after
    `limit_s` seconds. Each size has one untimed warm-up call. A context is the number of tokens of
    the sequence, including the tree's root. There is no prefill: times do not depend on the values
    in the cache. If an engine pads trees and all its sizes up to the largest are timed, the surface
    is `padded`. With our CPU kernels, a call of more nodes takes no less time, so medians that say
    otherwise are noise: the closest non-decreasing times replace them. Empties the models' caches.
    Raises `ValueError` if a context and tree exceed a model's positions.
    """
    draw, started = random.Random(seed), time.perf_counter()
    trees = {size: random_tree(size, draw=draw) for size in sorted(set(nodes))}
    contexts = sorted(set(contexts))
    deepest = max(int(tree.depths().max()) for tree in trees.values())
    positions = min(model.max_len for model in models)
    if contexts[-1] + deepest > positions:
        raise ValueError(
            f"a context of {contexts[-1]} and a tree {deepest} deep reach beyond the model's "
            f"{positions} positions: measure shorter contexts"
        )
    vocab = min(IDS, *(model.vocab_size for model in models))
    text = [draw.randrange(vocab) for _ in range(contexts[-1])]
    sizes, (target, *draft) = list(trees), models
    times: defaultdict[tuple, list[float]] = defaultdict(list)

    def call_ms(model: CachedModel, sequence: CachedSequence, size: int, context: int) -> float:
        tree = TokenTree((text[context - 1], *trees[size].tokens[1:]), trees[size].parents)
        began = time.perf_counter()
        argmax(model.score(sequence, text[:context], tree), text[:context], tree)
        return 1e3 * (time.perf_counter() - began)

    for model in models:  # before timing, so that no timed call grows the cache
        model.cache.reserve(padded_slots(contexts[-1] + padded_nodes(max(*trees, NODES[-1]))))
        model.cache.clear()
    for model in models:
        sequence = model.new_sequence(cached=text[: contexts[-1] - 1])
        for size in trees:
            call_ms(model, sequence, size, contexts[-1])
    for visit in range(visits):
        if visit and time.perf_counter() - started > limit_s:
            break
        for context in contexts:
            sequences = {m: m.new_sequence(cached=text[: context - 1]) for m in models}
            for _ in range(repeats):
                drafts = draw.sample(2 * sizes, 2 * len(sizes))
                steps = zip(draw.sample(sizes, len(sizes)), drafts[::2], drafts[1::2], strict=True)
                for step in steps:
                    for model, size in zip((target, *draft, *draft), step, strict=False):
                        own = call_ms(model, sequences[model], size, context)
                        times[model, context, size].append(own)
    surfaces = []
    for model in models:
        model.empty()
        ms: defaultdict = defaultdict(dict)
        spread: defaultdict = defaultdict(dict)
        for context, size in product(contexts, trees):
            low, middle, high = map(float, np.percentile(times[model, context, size], (25, 50, 75)))
            ms[context][size], spread[context][size] = middle, (high - low) / 2
        for context, row in ms.items() if model.exact else ():
            ms[context] = dict(
                zip(row, isotonic_regression([*row.values()]).x.tolist(), strict=True)
            )
        pads = isinstance(model.engine, Static)
        padded = pads and list(trees) == [size for size in NODES if size <= max(trees)]
        surfaces.append(Surface(ms, padded, spread))
    return surfaces


def time_reading(model: CachedModel, prompts: Sequence[int]) -> dict[float, float]:
    """Time the prefill of prompts with these numbers of tokens; return {tokens: median
    milliseconds}. Empties the model's cache."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(READINGS):
        for tokens in prompts:
            model.empty()
            text = [token % min(IDS, model.vocab_size) for token in range(tokens)]
            root, began = TokenTree.chain(text[-1], ()), time.perf_counter()
            argmax(model.score(model.new_sequence(), text, root), text, root)
            times[tokens].append(1e3 * (time.perf_counter() - began))
    model.empty()
    return {tokens: float(np.median(ms)) for tokens, ms in times.items()}


def random_tree(nodes: int, *, draw: random.Random) -> TokenTree:
    """Return a random tree of distinct tokens, with branches if it has three nodes or more."""
    parents = [-1, *(draw.randrange(node) for node in range(1, nodes))]
    if nodes > 2:
        parents[2] = 0
    return TokenTree(tuple(range(nodes)), tuple(parents))


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second, read plus written, of a copy within the device's memory.

    Uses the fastest of several copies, as STREAM does (McCalpin,
    https://www.cs.virginia.edu/stream/ref.html), because other load can only slow a copy down. A
    CPU may read a cache line before writing it; this is not counted, so pure reading can be faster.
    On a GPU, a copy has 4 GiB or a quarter of the free memory.
    """
    on_gpu = device.type == "cuda"
    size = min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // 4) if on_gpu else CPU_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy, seconds = torch.empty_like(source), []
    for _ in range(COPIES):
        started = time.perf_counter()
        copy.copy_(source)
        if on_gpu:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    if on_gpu:  # leave the memory to CUDA graphs
        source, copy = source.new_empty(0), copy.new_empty(0)
        torch.cuda.empty_cache()
    return 2 * size / min(seconds[1:])


def floors(models: Sequence[CachedModel]) -> dict[str, object]:
    """Return the arguments of `Costs` that determine bandwidth floors: the `footprints` of a
    target and an optional draft (`models`, in this order), and `copy_bytes_per_s`."""
    footprints = dict(zip(("target", "draft"), map(footprint, models), strict=False))
    return {"footprints": footprints, "copy_bytes_per_s": copy_bandwidth(models[0].device)}


def footprint(model: CachedModel) -> Footprint:
    """Return the `Footprint` of a loaded model."""
    held = sum(map(stored_bytes, model.model.parameters()))
    slots = (
        len(members) * shape.kv_heads * (shape.key_width + shape.value_width) * shape.dtype.itemsize
        for shape, members in model.cache.groups.items()
    )
    return Footprint(held, bytes_of(model.model), sum(slots))
