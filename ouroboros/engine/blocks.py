"""Decoder layers compiled one by one, in their model only for a while.

Compiled code sees one layer with one layer's slots, so all layers share it, and so do all sizes of
calls but one: a call of a single node has code of its own, tuned, whose products read the weights
at the memory's bandwidth. Projections of one input (queries, keys and values; gate and up) are one
product: their weights lie behind one another, and the same product is made once.

Invariant: outside `swapped_in` the model is as it was, so that transformers' own generation runs
the plain model in the same process; its weights keep their values wherever they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import _config
from torch.utils._pytree import tree_iter, tree_map
from transformers import PreTrainedModel

from ouroboros.engine.cache import SlotCache
from ouroboros.engine.masks import Masks, spread
from ouroboros.engine.projections import ONCE, fuse_projections

OPTIONS: dict[str, Any] = {"post_grad_custom_pre_pass": ONCE, "combo_kernels": True}
VARYING = {1: (0,), 2: (1,), 3: (1,), 4: (2, 3)}  # of an input's axes: nodes and slots


class Blocks:
    """A model's decoder layers, compiled. `tuned` says which way a call of one node goes; None as
    long as nobody knows which is faster."""

    def __init__(self, model: PreTrainedModel, *, backend: Any = "inductor") -> None:
        count = model.config.get_text_config().num_hidden_layers
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
        self.layers = next((found for found in lists if len(found) == count), nn.ModuleList())
        self.plain = list(self.layers)
        self.compiled = [Block(layer, index, backend) for index, layer in enumerate(self.plain)]
        self.tuned: bool | None = None
        self.spread = torch.compile(spread, backend=backend)
        self.places = [place for layer in self.plain for place in fuse_projections(layer)]

    def masks(self, inside: torch.Tensor, *rest) -> Masks:
        """As `engine.masks.spread`, compiled."""
        mark(inside, (0, 1))
        for tensor in filter(torch.is_tensor, rest):
            mark(tensor)
        return self.spread(inside, *rest)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the compiled layers in place for a while."""
        for block in self.compiled:
            block.tuned = self.tuned is not False
        self._place(self.compiled)
        for owner, name, _, part in self.places:
            setattr(owner, name, part)
        apart = _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
        try:
            with apart:  # two sizes that happen to be equal are two
                yield
        finally:
            self._place(self.plain)
            for owner, name, plain, _ in self.places:
                setattr(owner, name, plain)

    def _place(self, layers: Sequence[nn.Module]) -> None:
        for index, layer in enumerate(layers):
            self.layers[index] = layer


class Block(nn.Module):
    """One layer, compiled for a call of one node, and for those of more."""

    def __init__(self, layer: nn.Module, index: int, backend: Any) -> None:
        super().__init__()
        self.index, self.tuned = index, True
        options = OPTIONS if backend == "inductor" else None
        single = options and {**options, "coordinate_descent_tuning": True}
        self.any = torch.compile(layer, backend=backend, options=options)
        self.single = torch.compile(layer, backend=backend, options=single)

    def forward(self, hidden: torch.Tensor, *args, **kwargs):
        """The layer's own arguments; of the cache it is given its own slots only."""
        args, kwargs = tree_map(self._own, (args, kwargs))
        for tensor in filter(torch.is_tensor, tree_iter((hidden, args, kwargs))):
            mark(tensor)
        layer = self.single if self.tuned and hidden.shape[1] == 1 else self.any
        return layer(hidden, *args, **kwargs)

    def _own(self, value):
        if not isinstance(value, SlotCache):
            return value
        own = value.one(self.index)
        for tensor in vars(own).values():
            mark(tensor)
        return own


def mark(tensor: torch.Tensor, axes: Sequence[int] | None = None) -> None:
    """Let code be compiled for any number of nodes and slots of an input from the first time on."""
    for axis in VARYING.get(tensor.ndim, ()) if axes is None else axes:
        if tensor.shape[axis] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
