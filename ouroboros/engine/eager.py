"""Call a transformers model directly: the engine of models that no other engine runs.

`Eager` uses tensors of exactly the size of the call. `Static` (in `ouroboros.engine.static`) pads
every call to one of a few fixed shapes, as CUDA graphs need. All engines are subclasses of `Eager`.

Invariant: all engines write the same slots, mask the same tokens, and return the same logits up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from ouroboros.core.tree import TokenTree
from ouroboros.engine.cache import ModelInfo, SlotCache, cache_argument
from ouroboros.engine.joint import JointCache
from ouroboros.engine.masks import Layout, Masks, dense
from ouroboros.engine.prepack import PackedWeights

PREFILL_ALONE = 128  # more uncached tokens are fed causally, without a dense mask, before the tree
MOST_HELD = 256  # maximum number of cached nodes that an extended tree may reuse
Part = tuple[SlotCache, Layout]
"""One sequence in a call: its cache slots, and what to feed."""


def fed_apart(missing: int, tree: TokenTree) -> bool:
    """Return whether `missing` uncached tokens are fed in a separate pass before the tree."""
    return missing > PREFILL_ALONE and not tree.is_chain


def read_alone(prompt: Sequence[int]) -> bool:
    """Return whether a branching tree after this uncached prompt would need a second forward pass.
    If so, tree drafters propose nothing in the first step."""
    return len(prompt) - 1 > PREFILL_ALONE


class Eager:
    """Calls one model with its cache. Returned logits are valid until the next call.

    `forwards` counts forward passes; `captures_jointly`: whether calls for several sequences are
    captured as CUDA graphs; `feeds_apart`: whether long prompts are fed before the tree (see
    `fed_apart`); `packed`: the weights that the model's linear layers use on a CPU.
    """

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
        """Return cache slots for a sequence that shares calls with others."""
        return SlotCache(self.info.layers)

    def prepare(self, context: int, rows: int = 1) -> None:
        """Warm up for calls on up to `context` slots, and for calls for up to `rows` sequences if
        that is above 1; the cache must be empty."""
        self.cache.reserve(context)

    def choosing(
        self, key: Hashable, compute: Callable, logits: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return `compute(logits, *inputs)`, which selects tokens row by row from the last call's
        logits. A static engine replays it as a CUDA graph, stored under `key`."""
        return compute(logits, *inputs)

    def feed_prompt(self, part: Part) -> Part:
        """Feed a long prompt before the tree, if that is cheaper than to feed both in one call;
        return what is left to call."""
        slots, layout = part
        causal = layout.tree.is_chain and slots is self.cache
        if not self.feeds_apart or causal or len(layout.missing) <= PREFILL_ALONE:
            return part
        self.call([(slots, Layout.chain(layout.base, layout.missing))])
        return slots, Layout(layout.base + len(layout.missing), [], layout.tree)

    def call(self, parts: Sequence[Part], token: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Make one call of the model for one or several sequences; return the logits of each
        layout's rows, [rows, vocab]. Node i of a layout's tree is written to slot `base +
        len(missing) + i`. `token` ([1] int64, on any device) replaces the first id, without a copy
        to the host."""
        self.forwards += 1
        make_room(parts)
        device, layouts = self.info.device, [layout for _, layout in parts]
        ids = [one for layout in layouts for one in layout.known_ids(self.info.vocab_size)]
        positions = np.concatenate([layout.positions()[layout.held :] for layout in layouts])
        words = torch.from_numpy(np.stack([np.array(ids), positions])).to(device, non_blocking=True)
        if token is not None:
            words[0, :1] = token
        rows, start = list[int](), 0
        for layout in layouts:
            rows += [start + row for row in layout.rows]
            start += layout.fed
        keep: int | torch.Tensor = 0  # 0: all rows
        if len(rows) < len(ids):
            keep = 1 if rows == [len(ids) - 1] else torch.tensor(rows, device=device)
        if len(parts) == 1:
            slots, layout = parts[0]
            mask = dense(layout, self.info)
            return [self.forward(words[:1], words[1:], mask, keep, slots)]
        cache = JointCache(
            self.info, parts, [dense(own, self.info, chains=True) for own in layouts]
        )
        with cache.attended():
            logits = self.forward(words[:1], words[1:], None, keep, cache)
        return list(logits.split([len(layout.rows) for layout in layouts]))

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Masks,
        keep: int | torch.Tensor,
        cache: Cache,
    ) -> torch.Tensor:
        """Call the model's modules; return the logits of the rows to `keep`, [rows, vocab] (0: all;
        n: the last n; a tensor: these indices). `ids` and `positions` are [1, n]."""
        with self.packed.used():
            out = self.model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                use_cache=True,
                logits_to_keep=keep,
                **{self.cache_argument: cache},
            )
        return out.logits[0]


def make_room(parts: Sequence[Part]) -> None:
    """Drop the slots after each layout's cached tokens, and reserve slots for its new tokens."""
    for slots, layout in parts:
        slots.set_length(layout.base + layout.held)
        slots.reserve(layout.base + len(layout.missing) + len(layout.tree))
