"""Decoder layers compiled one by one, in their model only for a while.

Invariant: outside `swapped_in` the model is as it was, so that transformers' own generation runs
the plain model in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel


class Blocks:
    """A model's decoder layers, compiled: they share their code, so one of them is compiled for all
    of a shape."""

    def __init__(self, model: PreTrainedModel, *, backend: str = "inductor") -> None:
        count = model.config.get_text_config().num_hidden_layers
        lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
        self.layers = next((found for found in lists if len(found) == count), None)
        plain = [] if self.layers is None else list(self.layers)
        self.plain = plain
        self.compiled = [torch.compile(layer, backend=backend) for layer in plain]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the compiled layers in place for a while."""
        config = torch._dynamo.config.patch(  # a layer's own index is no reason to compile anew
            allow_unspec_int_on_nn_module=True, recompile_limit=64
        )
        self._place(self.compiled)
        try:
            with config:
                yield
        finally:
            self._place(self.plain)

    def _place(self, layers: Sequence) -> None:
        for index, layer in enumerate(layers):
            assert self.layers is not None
            self.layers[index] = layer
