"""Who sees whom in one forward: from a tree below a sequence to the masks of a model.

`Layout` says it in NumPy, for the tokens of the forward alone; every slot before them is seen by
all. `dense` makes the masks of a forward as large as its tokens from it, `spread` those of a padded
one, on the device, where nothing may wait for the host.

Invariant: both show each node the context, the tokens missing before the tree, its ancestors and
itself, as far as a sliding window reaches; rounding apart, the same logits follow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ouroboros.engine.model_info import ModelInfo
from ouroboros.tree import TokenTree

Masks = torch.Tensor | dict[str, torch.Tensor] | None


class Layout(NamedTuple):
    """A forward's tokens: `missing` ones of the sequence, then a tree, from slot `base` on.

    The first `held` nodes of the tree lie in their slots already (nothing is missing then, and none
    of them is asked): their columns are seen, but they are not fed.
    """

    base: int
    missing: list[int]
    tree: TokenTree
    held: int = 0

    @classmethod
    def chain(cls, base: int, tokens: list[int]) -> Layout:
        """Return the layout of a stretch of text, of which the last token is asked."""
        *missing, last = tokens
        return cls(base, missing, TokenTree.chain(last, ()))

    @property
    def ids(self) -> list[int]:
        """The tokens that are fed."""
        return [*self.missing, *self.tree.tokens[self.held :]]

    @property
    def rows(self) -> list[int]:
        """The fed tokens after which logits are wanted."""
        first = len(self.missing) - self.held
        return [first + node for node in self.tree.logit_nodes]

    def positions(self) -> np.ndarray:
        """Return [columns] int64: the place of every missing token and node in the text."""
        depths, start = self.tree.depths(), self.base + len(self.missing)
        if not self.missing:
            return start + depths
        return np.concatenate([np.arange(self.base, start), start + depths])

    def seen(self) -> np.ndarray:
        """Return [fed, columns] bool: which of the columns each fed token sees.

        One missing token before the root with two children, of which none are held::

            T F F F
            T T F F
            T T T F
            T T F T
        """
        before, nodes = len(self.missing), len(self.tree)
        if not before:
            return self.tree.ancestors()[self.held :]
        seen = np.zeros((before + nodes, before + nodes), dtype=bool)
        seen[:before, :before] = np.tri(before, dtype=bool)
        seen[before:, :before] = True
        seen[before:, before:] = self.tree.ancestors()
        return seen


def dense(layout: Layout, facts: ModelInfo) -> Masks:
    """Return the masks over all slots in use, [1, 1, fed, base + columns]; None for a chain, which
    the model masks itself."""
    if layout.tree.is_chain:
        return None
    inside, near = layout.seen(), None
    seen = np.ones((len(inside), layout.base + inside.shape[1]), dtype=bool)
    seen[:, layout.base :] = inside
    if facts.sliding_window is not None:
        positions = layout.positions()
        if positions.max() >= facts.sliding_window:
            slots = np.concatenate([np.arange(layout.base), positions])
            back = positions[layout.held :, None] - slots
            near = _on(facts.device, back < facts.sliding_window)
    return by_layer(_on(facts.device, seen), near, facts)


def spread(
    inside: torch.Tensor,
    positions: torch.Tensor,
    own: torch.Tensor,
    base: torch.Tensor,
    at: torch.Tensor,
    facts: ModelInfo,
) -> Masks:
    """Return the masks of a padded forward over the slots `at` ([slots], from 0 on), [1, 1, nodes,
    slots].

    `inside` [nodes, columns] and `positions` [columns] are a layout's, padded, `base` [1] its first
    slot, and `own` [nodes] the columns of the tokens that are fed.
    """
    width = inside.shape[1]
    column, context = (at - base).clamp(0, width - 1), at < base
    seen, near = context | (~context & (at < base + width) & inside[:, column]), None
    if facts.sliding_window is not None:
        places = torch.where(context, at, positions[column])
        near = positions[own][:, None] - places < facts.sliding_window
    return by_layer(seen, near, facts)


def by_layer(seen: torch.Tensor, near: torch.Tensor | None, facts: ModelInfo) -> Masks:
    """Return the additive mask, or one by layer type, of what is `seen` and what is `near` enough
    for a sliding window (None: all of it), both [queries, slots] bool."""
    local = additive(seen if near is None else seen & near, facts.dtype)
    if facts.layer_types is None:
        return local
    whole = local if near is None else additive(seen, facts.dtype)
    return {"full_attention": whole, "sliding_attention": local}


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the additive mask [1, 1, queries, slots] of a boolean [queries, slots]."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


def _on(device: torch.device, mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(mask).to(device, non_blocking=True)
