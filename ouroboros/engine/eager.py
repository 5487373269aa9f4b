"""Call a transformers model directly: the engine of models that no other engine runs.

`Eager` uses tensors of exactly the size of the call. `Static` (in `ouroboros.engine.static`) pads
every call to one of a few fixed shapes, as CUDA graphs need. All engines are subclasses of `Eager`.

Invariant: all engines write the same slots, mask the same tokens, and return the same logits up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from ouroboros.engine.cache import ModelInfo, SlotCache, cache_argument
from ouroboros.engine.joint import JointCache
from ouroboros.engine.masks import Layout, Masks, dense
from ouroboros.engine.prepack import PackedWeights
from ouroboros.tree import ROOT, TokenTree

PREFILL_ALONE = 128  # more uncached tokens are fed causally, without a dense mask, before the tree
MOST_HELD = 256  # maximum number of cached nodes that an extended tree may reuse


def fed_apart(missing: int, tree: TokenTree) -> bool:
    """Return whether `missing` uncached tokens are fed in a separate pass before the tree."""
    return missing > PREFILL_ALONE and not tree.is_chain


def read_alone(prompt: Sequence[int]) -> bool:
    """Return whether a branching tree after this uncached prompt would need a second forward pass.
    If so, tree drafters propose nothing in the first step."""
    return len(prompt) - 1 > PREFILL_ALONE


def make_room(parts: Sequence[tuple[SlotCache, Layout]]) -> None:
    """Drop the slots after each layout's cached tokens, and reserve slots for its new tokens."""
    for slots, layout in parts:
        slots.set_length(layout.base + layout.held)
        slots.reserve(layout.base + len(layout.missing) + len(layout.tree))


class Eager:
    """Calls one model with its cache. Chains use the model's own causal mask. Returned logits are
    valid until the next call. `forwards` counts forward passes; `captures_jointly`: whether joint
    calls are captured as CUDA graphs; `feeds_apart`: whether long prompts are fed before the tree
    (see `fed_apart`); `packed`: the weights that the model's linear layers use on a CPU."""

    feeds_apart = True

    def __init__(self, model: PreTrainedModel, info: ModelInfo, cache: SlotCache) -> None:
        self.model = model
        self.info = info
        self.cache = cache
        self.cache_argument = cache_argument(model)
        self.forwards = 0
        self.captures_jointly = False
        self.packed = PackedWeights()

    def new_slots(self) -> SlotCache:
        """Return cache slots for a sequence of joint calls."""
        return SlotCache(self.info.layers)

    def run(
        self, known: int, missing: list[int], tree: TokenTree, *, held: int = 0
    ) -> torch.Tensor:
        """Feed `missing` (uncached) tokens and the tree after `known` cached slots; return the
        logits after its `logit_nodes`, [len(tree.logit_nodes), vocab].

        Node i of the tree is written to slot `known + len(missing) + i`. If `held` is above 0, the
        first `held` nodes (at most `MOST_HELD`, no logit node) are cached and `missing` is empty.
        """
        self.cache.reserve(known + len(missing) + len(tree))
        if self.feeds_apart and fed_apart(len(missing), tree):
            self.call(Layout.chain(known, missing))
            known, missing = known + len(missing), []
            self.cache.set_length(known)
        return self.call(Layout(known, missing, tree, held))

    def follow(self, slot: int, token: torch.Tensor) -> torch.Tensor:
        """Feed one token ([1] int64, on any device) at position `slot`, which is also its slot;
        return [1, vocab] logits. The token is not copied to the host."""
        self.cache.reserve(slot + 1)
        return self.call(Layout(slot, [], ROOT), token)

    def prepare(self, context: int, rows: int = 1) -> None:
        """Warm up for calls on up to `context` slots, and for joint calls of up to `rows` sequences
        if that is above 1; the cache must be empty."""
        self.cache.reserve(context)

    def choosing(
        self, key: Hashable, compute: Callable, logits: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return `compute(logits, *inputs)`, which selects tokens row by row from the last call's
        logits. A static engine replays it as a CUDA graph, stored under `key`."""
        return compute(logits, *inputs)

    def call(self, layout: Layout, token: torch.Tensor | None = None) -> torch.Tensor:
        """Make one call of the model; return the logits of the layout's rows, [rows, vocab].
        `token`, a tensor on the device, replaces the first id."""
        self.forwards += 1
        ids, rows = layout.known_ids(self.info.vocab_size), layout.rows
        words = np.stack([np.array(ids), layout.positions()[layout.held :]])
        packed = torch.from_numpy(words).to(self.info.device, non_blocking=True)
        if token is not None:
            packed[0, :1] = token
        keep: int | torch.Tensor = 0  # 0: all rows
        if len(rows) < len(ids):
            last = rows == [len(ids) - 1]
            keep = 1 if last else torch.tensor(rows, device=self.info.device)
        return self.forward(packed[:1], packed[1:], self.masks(layout), keep)

    def call_jointly(self, parts: Sequence[tuple[SlotCache, Layout]]) -> list[torch.Tensor]:
        """Make one call of the model for several sequences, each with its own slots; return the
        logits of each layout's rows, [rows, vocab]."""
        self.forwards += 1
        device, vocab = self.info.device, self.info.vocab_size
        layouts = [layout for _, layout in parts]
        make_room(parts)
        cache = JointCache(self.info, parts, [self.joint_mask(layout) for layout in layouts])
        ids = [token for layout in layouts for token in layout.known_ids(vocab)]
        positions = np.concatenate([layout.positions()[layout.held :] for layout in layouts])
        words = torch.from_numpy(np.stack([np.array(ids), positions])).to(device, non_blocking=True)
        rows = [s.fed.start + row for s in cache.shares for row in s.layout.rows]
        keep = torch.tensor(rows, device=device) if len(rows) < len(ids) else 0
        with cache.attended():
            logits = self.forward(words[:1], words[1:], None, keep, cache)
        return list(logits.split([len(layout.rows) for layout in layouts]))

    def masks(self, layout: Layout) -> Masks:
        """Return the attention masks to pass to the model, see `dense`."""
        return dense(layout, self.info)

    def joint_mask(self, layout: Layout) -> Any:
        """Return the attention mask of one sequence in a joint call, see `dense`."""
        return dense(layout, self.info, chains=True)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Masks,
        keep: int | torch.Tensor,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Call the model on [1, n] ids and positions, with `cache` (None: the engine's); return the
        logits of the rows to `keep`, [rows, vocab] (0: all; n: the last n; a tensor: these
        indices)."""
        with self.packed.used():
            out = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=keep,
                **{self.cache_argument: self.cache if cache is None else cache},
            )
        return out.logits[0]
