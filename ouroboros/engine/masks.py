"""Attention masks for one forward pass over a tree after a cached context.

`Layout` describes the pass in NumPy: which fed tokens attend to which other fed tokens; all attend
to the context. `dense` returns masks of exactly the size of the pass; `spread` builds the masks of
a padded pass on the device, without waiting for the host.

Invariant: a node attends to the context, the sequence tokens fed before the tree, its ancestors and
itself, within any sliding window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ouroboros.core.tree import TokenTree
from ouroboros.engine.cache import ModelInfo

Masks = torch.Tensor | dict[str, torch.Tensor] | None


class Layout(NamedTuple):
    """The tokens of a forward pass: `missing` tokens of the sequence, then a tree, in slots from
    `base` on. Its *columns* are all of these tokens.

    The first `held` nodes of the tree are cached already and not fed; none is a logit node. If
    `held` is above 0, `missing` is empty.
    """

    base: int
    missing: list[int]
    tree: TokenTree
    held: int = 0

    @classmethod
    def chain(cls, base: int, tokens: list[int]) -> Layout:
        """Return the layout of consecutive tokens of a sequence, in slots from `base` on, with
        logits after the last one."""
        return cls(base, tokens[:-1], TokenTree.chain(tokens[-1], ()))

    def known_ids(self, vocab_size: int) -> list[int]:
        """Return the ids to feed, with 0 in place of ids beyond the vocabulary. Raises `ValueError`
        for a negative id."""
        ids = [*self.missing, *self.tree.tokens[self.held :]]
        if min(ids) < 0:
            raise ValueError(f"token id {min(ids)} is negative: give ids of 0 or more")
        return ids if max(ids) < vocab_size else [i if i < vocab_size else 0 for i in ids]

    @property
    def fed(self) -> int:
        """The number of tokens to feed."""
        return len(self.missing) + len(self.tree) - self.held

    @property
    def rows(self) -> list[int]:
        """The indices of the tree's logit nodes among the fed tokens."""
        first = len(self.missing) - self.held
        return [first + node for node in self.tree.logit_nodes]

    def positions(self) -> np.ndarray:
        """Return [columns] int64: the position of every missing token and every node."""
        depths, start = self.tree.depths(), self.base + len(self.missing)
        if not self.missing:
            return start + depths
        return np.concatenate([np.arange(self.base, start), start + depths])

    def seen(self) -> np.ndarray:
        """Return the mask between the tokens of the pass, [fed, columns] bool.

        For one missing token and a root with two children::

            T F F F
            T T F F
            T T T F
            T T F T
        """
        before, ancestors = len(self.missing), self.tree.ancestors(self.held)
        if not before:
            return ancestors
        seen = np.tri(before + len(ancestors), dtype=bool)
        seen[before:, before:] = ancestors
        return seen


def dense(layout: Layout, info: ModelInfo, *, chains: bool = False) -> Masks:
    """Return the additive masks over all slots in use, [1, 1, fed, base + columns] (by layer type
    if types are mixed, see `by_layer`); None for a chain, which the model masks itself.

    With `chains`, a chain gets a mask too, unless attention needs none: for a single token or the
    first tokens of a sequence, if no token is outside a sliding window.
    """
    if layout.tree.is_chain and chains:
        wide = info.sliding_window is None or layout.base + layout.fed <= info.sliding_window
        if wide and not layout.held and (layout.fed == 1 or not layout.base):
            return None
    elif layout.tree.is_chain:
        return None
    inside, near = layout.seen(), None
    seen = np.ones((len(inside), layout.base + inside.shape[1]), dtype=bool)
    seen[:, layout.base :] = inside
    if info.sliding_window is not None:
        positions = layout.positions()
        if positions.max() >= info.sliding_window:
            slots = np.concatenate([np.arange(layout.base), positions])
            back = positions[layout.held :, None] - slots
            near = torch.from_numpy(back < info.sliding_window).to(info.device, non_blocking=True)
    return by_layer(torch.from_numpy(seen).to(info.device, non_blocking=True), near, info)


def spread(
    inside: torch.Tensor,
    positions: torch.Tensor,
    own: torch.Tensor,
    base: torch.Tensor,
    at: torch.Tensor,
    info: ModelInfo,
) -> Masks:
    """Return the masks of a padded pass, [1, 1, nodes, slots], as `by_layer` does.

    - `inside` [nodes, columns], `positions` [columns]: the layout's mask and positions, padded
    - `own` [nodes]: the columns of the fed tokens
    - `base` [1]: the layout's first slot
    - `at` [slots]: the slots 0 to slots - 1
    """
    width = inside.shape[1]
    column, context = (at - base).clamp(0, width - 1), at < base
    seen, near = context | (~context & (at < base + width) & inside[:, column]), None
    if info.sliding_window is not None:
        places = torch.where(context, at, positions[column])
        near = positions[own][:, None] - places < info.sliding_window
    return by_layer(seen, near, info)


def by_layer(seen: torch.Tensor, near: torch.Tensor | None, info: ModelInfo) -> Masks:
    """Return an additive mask or, if layer types are mixed, a dict of one per type:
    "full_attention" and "sliding_attention".

    `seen` and `near` are [queries, slots] bool: the slots that a full-attention layer attends to,
    and the slots within the sliding window (None: all).
    """
    local = additive(seen if near is None else seen & near, info.dtype)
    if info.layer_types is None:
        return local
    whole = local if near is None else additive(seen, info.dtype)
    return {"full_attention": whole, "sliding_attention": local}


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the additive mask [1, 1, queries, slots] of a boolean [queries, slots]: 0 where
    visible, else the lowest value of `dtype`."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]
