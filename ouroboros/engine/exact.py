"""Exact calls on a CPU: a token's logits are bitwise identical in every call that computes them.

Rounding depends on the order of additions, and libraries choose that order by the shape of a call:
a tree of 16 nodes rounds differently from 16 single steps. In the CPU kernels the order depends on
a token's position alone. Attention computes each score alone and adds up values in the order of
their positions. A tree's slots are not in this order, so the slots of a node's ancestors (`Reach`)
are gathered. `check_exact` compares a tree with single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ouroboros.engine.cache import ModelInfo
from ouroboros.engine.eager import Eager
from ouroboros.engine.masks import Layout
from ouroboros.engine.support import trial_tree

TEXT, NODES = 14, 18  # of `check_exact`: tokens of the text, nodes of the tree


@dataclass(frozen=True, eq=False)
class Reach:
    """The slots that each fed token attends to, sorted by position; one row per token.

    Row r lists `lengths[r]` slots: first 0 to `straight[r]` - 1, then `tails[r, 0]`, `tails[r, 1]`,
    ... Attention starts at entry `first[0, r]` of the list, or `first[1, r]` in sliding-window
    layers. All arrays are int64.
    """

    lengths: np.ndarray
    straight: np.ndarray
    tails: np.ndarray
    first: np.ndarray

    def of_rows(self, rows: slice) -> Reach:
        """Return the slots that the tokens in `rows` attend to."""
        first = np.ascontiguousarray(self.first[:, rows])
        return Reach(self.lengths[rows], self.straight[rows], self.tails[rows], first)

    @classmethod
    def joined(cls, parts: Sequence[Reach]) -> Reach:
        """Return the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.tails.shape[1] for part in parts)
        tails = [np.pad(p.tails, ((0, 0), (0, width - p.tails.shape[1]))) for p in parts]
        lengths = np.concatenate([part.lengths for part in parts])
        straight = np.concatenate([part.straight for part in parts])
        first = np.concatenate([part.first for part in parts], axis=1)
        return cls(lengths, straight, np.concatenate(tails), first)

    @classmethod
    def of(cls, layout: Layout, window: int | None) -> Reach:
        """Return the slots that a layout's fed tokens attend to. `window`: the sliding window, or
        None."""
        before, held, start = len(layout.missing), layout.held, layout.base + len(layout.missing)
        lengths = layout.positions()[held:] + 1
        first = np.zeros((2, len(lengths)), dtype=np.int64)
        first[1] = np.maximum(0, lengths - (window or lengths))
        if layout.tree.is_chain:
            return cls(lengths, lengths, np.zeros((len(lengths), 1), dtype=np.int64), first)
        parents, chain, straight, listed = layout.tree.parents, 0, list[int](), list[list[int]]()
        while parents[chain] == chain - 1:  # nodes at slot = position
            chain += 1
        for node in range(held, len(parents)):
            apart = list[int]()
            while node >= chain:
                apart.append(start + node)
                node = parents[node]
            straight.append(start + node + 1)
            listed.append(apart[::-1])
        tails = np.zeros((len(lengths), max(1, *map(len, listed))), dtype=np.int64)
        for row, apart in enumerate(listed, start=before):
            tails[row, : len(apart)] = apart
        return cls(lengths, np.array([*lengths[:before], *straight]), tails, first)


def is_sliding(layer: int, info: ModelInfo) -> bool:
    """Return whether a layer attends within a sliding window."""
    if info.sliding_window is None or info.layer_types is None:
        return info.sliding_window is not None
    return info.layer_types[layer] == "sliding_attention"


def check_exact(engine: Eager) -> None:
    """Check that calls give bitwise identical logits: score a tree after a text, then feed the
    text's tokens and the nodes in single steps. Overwrites the first slots. Raises `ValueError`
    with the first difference."""
    text, name = engine.info.text, type(engine.model).__name__
    nodes = min(NODES, 6 * len(text) // 5)
    start = max(0, min(TEXT, len(text) - nodes))
    tree, _ = trial_tree(text[start:], nodes)
    depths = tree.depths()

    def step(token: int, at: int) -> torch.Tensor:
        return engine.call([(engine.cache, Layout.chain(at, [token]))])[0][0]

    try:
        with torch.inference_mode():
            layout = Layout(0, list(text[:start]), tree)
            scored = engine.call([(engine.cache, layout)])[0].clone()
            for at, token in enumerate(text[:start]):
                step(token, at)
            for node in sorted(range(nodes), key=tree.path_to):  # parents stay in their slots
                single = step(tree.tokens[node], start + int(depths[node]))
                if not torch.equal(single, scored[node]):
                    error = (single - scored[node]).abs().max().item()
                    raise ValueError(
                        f"{name} is not exact: the logits after node {node} of a tree differ from "
                        f"those of single steps by up to {error:.2g}"
                    )
    finally:
        engine.cache.set_length(0)
        engine.forwards = 0
