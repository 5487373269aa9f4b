"""Linear layers on a CPU that multiply a few rows about as fast as one: prepacked float32 weights.

A call of a tree is bound by reading the weights, but torch's product of 4 to 24 rows (MKL's) takes
2 to 4 times as long as one of a single row. oneDNN's on weights in its own order takes 1.2 to 2.2
times as long. Up to three rows MKL is faster.

Only models that this library loaded or built are packed, since a write through `weight.data`, which
torch does not count, would go unnoticed. Invariant: the weights stay where and what they are; a
packed layer holds a second copy, uses it only while its weight was neither replaced nor written to,
and copies of the model begin without one.
"""

from __future__ import annotations

from typing import TypeGuard

import psutil
import torch
from torch import nn

FEWEST_ROWS = 4  # below, plain products are as fast or faster
SMALLEST = 1 << 20  # smaller weights stay in the processor's caches, packed or not
FREE_SHARE = 0.5  # of the free memory may be taken, at most


class Packed:
    """A copy of a weight in oneDNN's order, and the state of the weight that it was made from."""

    of: tuple | None = None
    weight: torch.Tensor | None = None

    def __init__(self, weight: torch.Tensor | None = None) -> None:
        if weight is not None:
            self.source = weight.detach()  # so its place is not reused
            self.of = _state(weight)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.source, FEWEST_ROWS)

    def __reduce__(self) -> tuple:  # of copies too
        return Packed, ()


class PackedLinear(nn.Linear):
    """A linear layer that uses its packed weight for several rows, outside of autograd."""

    packed: Packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, own = self.weight, self.packed
        if (
            torch.compiler.is_compiling()
            or input.numel() < FEWEST_ROWS * self.in_features
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or own.of != _state(weight)
            or input.dtype != torch.float32
            or not input.is_cpu
        ):
            return nn.functional.linear(input, weight, self.bias)
        product = torch.ops.mkldnn._linear_pointwise
        return product(input, own.weight, self.bias, "none", [], "")


def prepack_linears(model: nn.Module) -> int:
    """Pack a model's large float32 linear layers on a CPU; return how many are packed now.

    Packs none if torch has no oneDNN for this processor, or if the copies would take more than half
    of the free memory. A layer packed before and unchanged since is left as it is.
    """
    layers = [module for module in model.modules() if _can_be_packed(module)]
    new = [
        layer
        for layer in layers
        if not (isinstance(layer, PackedLinear) and layer.packed.of == _state(layer.weight))
    ]
    taken = sum(layer.weight.nbytes for layer in new)
    if not _supported() or taken > FREE_SHARE * psutil.virtual_memory().available:
        return len(layers) - len(new)
    for layer in new:
        layer.packed = Packed(layer.weight)  # type: ignore[assignment]
        layer.__class__ = PackedLinear
    return len(layers)


def _supported() -> bool:
    """Return whether torch has oneDNN for this processor, of the x86 family."""
    known = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return known and torch.backends.mkldnn.is_available()


def _can_be_packed(module: nn.Module) -> TypeGuard[nn.Linear]:
    if not isinstance(module, nn.Linear) or type(module) not in (nn.Linear, PackedLinear):
        return False
    weight: torch.Tensor = module.weight
    plain = type(weight) in (nn.Parameter, torch.Tensor) and weight.is_cpu
    large = weight.dtype == torch.float32 and weight.numel() >= SMALLEST
    return plain and large and not weight.is_inference()


def _state(weight: torch.Tensor) -> tuple:
    """Return values that change when a weight is replaced or written to."""
    if weight.is_inference():
        return ()
    return weight.data_ptr(), weight._version, weight.shape, weight.stride()
