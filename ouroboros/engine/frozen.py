"""What a wrapped model was when it was read: its weights, buffers and modules.

Engines copy weights, hold their addresses and capture graphs of them. So a model that is changed
must be read again. `Frozen.check`, made when a sequence begins, finds parameters, buffers and
modules that were replaced, and weights that were moved or written to.

Invariant: the memory of each weight exists as long as the `Frozen`, so no address can dangle.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn


class ModelChanged(ValueError):
    """Raised if a model has changed since it was wrapped: call `CachedModel.refresh`."""


class Weight(NamedTuple):
    """A parameter or buffer as it was: its address, torch's count of writes to it (None for an
    inference tensor, which has none, and for a buffer, which the model may write itself, as with
    LongRoPE), and an alias, which keeps the memory."""

    tensor: torch.Tensor
    address: int
    writes: int | None
    alias: torch.Tensor


class Frozen:
    """The parameters, buffers and children of `modules`, in the dictionaries that hold them.
    Offloaded weights, which are replaced in each call, are left out."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.parts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.weights: list[Weight] = []
        for module in modules:
            self.parts += [(module._modules, dict(module._modules))] * bool(module._modules)
            for named in (module._parameters, module._buffers):
                there = {n: w for n, w in named.items() if w is None or not w.is_meta}
                self.parts += [(named, there)] * bool(there)
                for weight in filter(torch.is_tensor, there.values()):
                    counted = named is module._parameters and not weight.is_inference()
                    writes = weight._version if counted else None
                    alias = weight.detach()
                    self.weights.append(Weight(weight, address_of(weight), writes, alias))

    def check(self) -> None:
        """Raise `ModelChanged` if a weight was replaced, moved or written to, or a module
        replaced."""
        replaced = any(
            named.get(name) is not part
            for named, parts in self.parts
            for name, part in parts.items()
        )
        if replaced or any(
            address_of(weight) != address or (writes is not None and weight._version != writes)
            for weight, address, writes, _ in self.weights
        ):
            raise ModelChanged(
                "the model has changed since it was wrapped (weights were replaced, moved or "
                "written to, or modules replaced): call refresh() on the CachedModel"
            )


def address_of(weight: torch.Tensor) -> int:
    """Return a tensor's address, or its id if it has no storage of its own (a quantised one)."""
    try:
        return weight.data_ptr()
    except RuntimeError:
        return id(weight)


def is_hooked(model: nn.Module) -> bool:
    """Return whether any module has hooks or a replaced `forward`, or torch has global hooks."""
    torchs = nn.modules.module
    everywhere = torchs._global_forward_hooks or torchs._global_forward_pre_hooks
    return bool(everywhere) or any(
        own._forward_hooks or own._forward_pre_hooks or "forward" in own.__dict__
        for own in model.modules()
    )
