"""Prepacked weights: on a CPU, linear layers that process a few rows about as fast as one.

Reading the weights limits the speed of a call with a few rows. Our kernel reads weights in a layout
of its own at memory bandwidth. torch's matrix products may be several times slower, or faster,
depending on processor, dtype and rows. So both are timed on the model's layers. In our kernel, a
row's result does not depend on the other rows.

Invariant: the model is not changed. Packed weights are copies, used by kernels, or by the model's
linear layers within `PackedWeights.used`; other calls of the model use its own weights.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import psutil
import torch
from torch import nn
from torch.nn.functional import pad

from ouroboros.engine.cpu_intrinsics import COLUMNS, FEATURES, INT8_STEP, INT8_TILES, can_multiply
from ouroboros.engine.cpu_kernels import POOL, kernels
from ouroboros.engine.quantised import Int8Linear

ROWS = (1, 2, 4, 16)  # row counts timed
MOST = 128  # most rows of one call of our kernel
SERIAL = 1 << 16  # multiplications below which one thread is as fast as several
HUGE_PAGE, ADVICE = 2 << 20, (14, 25)  # MADV_HUGEPAGE, then MADV_COLLAPSE
SMALLEST = {torch.float32: 1 << 20, torch.bfloat16: 1 << 17}
"""Elements of the smallest weight to pack, by dtype; smaller ones gain nothing."""
FREE_SHARE = 0.5  # largest share of the free memory that the copies may take
TIMED_BYTES = 96 << 20  # weights to time: more than the processor's caches hold
ROUNDS, LIMIT_S = 5, 0.5  # rounds and time limit of the timing
DISPATCH_MS = 0.03  # overhead of calling a module, which fused calls avoid
CLEARLY = 0.9  # use plain weights only if they take less than this share of the packed time
TIMINGS = 3  # in each of this many timings; a single one is unreliable on a busy machine
Unit = tuple[nn.Linear | Int8Linear, ...]
"""Layers with the same input that share one packed weight, or a single layer."""


class Packed:
    """A copy of the weights of some layers, concatenated, in the layout of our kernel, with their
    biases and, for int8 weights, the scales of their columns (None: none).

    The weight is in blocks of 64 columns. In a block, the columns of one input are contiguous; in
    bfloat16 and int8, those of two inputs, interleaved. For int8 with AMX a block has tiles of 16
    columns x 64 inputs, four inputs interleaved.
    """

    def __init__(self, layers: Unit) -> None:
        parts: list[Any] = list(layers)
        weight = torch.cat([layer.weight.detach() for layer in parts])
        self.shape, self.dtype, self.layers = weight.shape, weight.dtype, layers
        padded, width = pad(weight, (0, 0, 0, -len(weight) % COLUMNS)), weight.shape[1]
        self.scale: torch.Tensor | None = None
        if weight.dtype == torch.int8:
            self.scale = torch.cat([layer.scale for layer in parts]).detach().float()
        if weight.dtype == torch.int8 and INT8_TILES and width % INT8_STEP == 0:
            steps = padded.view(-1, 4, COLUMNS // 4, width // INT8_STEP, 16, 4)
            self.weight = steps.permute(0, 3, 1, 4, 2, 5).contiguous()
        else:
            words = padded.view(torch.int32 if self.scale is None else torch.int16)
            self.weight = words.view(-1, COLUMNS, words.shape[1]).transpose(1, 2).contiguous()
        self.bias: torch.Tensor | None = None
        if biases := [layer.bias.detach() for layer in parts if layer.bias is not None]:
            zeros = biases[0].new_zeros
            own = [zeros(p.out_features) if p.bias is None else p.bias for p in parts]
            self.bias = torch.cat(own).detach()
        use_huge_pages(self.weight.data_ptr(), self.weight.nbytes)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of weight, bias and scale; 0 for None."""
        parts = self.weight, self.bias, self.scale
        return tuple(0 if part is None else part.data_ptr() for part in parts)  # type: ignore

    def multiply(self, input: torch.Tensor, start: int = 0, end: int | None = None) -> torch.Tensor:
        """Return `input` [..., in] times the columns `start` to `end` (None: all) of the packed
        weight, plus their bias, [..., columns]."""
        width, input = self.shape[1], input.contiguous()
        if input.numel() > MOST * width:
            parts = input.view(-1, width).split(MOST)
            whole = torch.cat([self.multiply(part, start, end) for part in parts])
            return whole.view(*input.shape[:-1], -1)
        skipped = start % COLUMNS  # the kernel begins with a whole block
        start, end = start - skipped, self.shape[0] if end is None else end
        rows, columns = input.numel() // width, end - start
        out = input.new_empty(*input.shape[:-1], columns)
        block_bytes = self.weight.nbytes // len(self.weight)
        weight, bias, scale = self.addresses
        kernels(input.dtype).multiply(
            *(-(-columns // COLUMNS), rows, width, columns, input.data_ptr()),
            weight + start // COLUMNS * block_bytes,
            *(bias and bias + start * input.element_size(), scale and scale + 4 * start),
            out.data_ptr(),
            threads=torch.get_num_threads() if rows * width * columns > SERIAL else 1,
        )
        return out[..., skipped:]


class PackedWeights(dict[Unit, Packed]):
    """The packed weights of a model's linear layers; empty if none are packed."""

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context manager: within it, the model's linear layers use the packed weights, but int8
        layers do not. No gradients are computed."""
        layers = [layer for unit, own in self.items() if own.scale is None for layer in unit]
        for unit, own in self.items():
            end = 0
            for layer in unit if own.scale is None else ():
                start, end = end, end + layer.out_features
                layer.__dict__["forward"] = partial(_forward, layer, own, start, end)
        try:
            yield
        finally:
            for layer in layers:
                layer.__dict__.pop("forward", None)


def _forward(layer: Any, packed: Packed, start: int, end: int, input: torch.Tensor) -> torch.Tensor:
    if input.numel() and input.dtype == packed.dtype:
        return packed.multiply(input, start, end)
    return nn.Linear.forward(layer, input)


def prepack_linears(
    model: nn.Module, *, every: bool = False, timed: bool = True, groups: Sequence[Unit] = ()
) -> PackedWeights:
    """Pack a model's large float32 and bfloat16 linear layers on a CPU, if that is faster.

    Returns no weights if there are no such layers, if the copies would take more than half of the
    free memory, or if plain weights are faster in total.

    - `every`, for calls by kernels alone: pack small and int8 layers too
    - `timed`: whether plain weights are tried
    - `groups`: tuples of layers that have the same input, multiplied in one product
    """
    least = {} if every else SMALLEST
    layers: list[Any] = [module for module in model.modules() if can_be_packed(module, least)]
    layers += [module for module in model.modules() if every and can_pack_int8(module)]
    grouped = {layer for group in groups for layer in group}
    units = [*groups, *((layer,) for layer in layers if layer not in grouped)]
    size = sum(layer.weight.nbytes for layer in layers)
    if not layers or size > FREE_SHARE * psutil.virtual_memory().available:
        return PackedWeights()
    packed = PackedWeights({unit: Packed(unit) for unit in units})
    plain = [unit for unit in units if packed[unit].scale is None]
    if timed and plain and (size >= TIMED_BYTES or not every):  # times of small ones are noise
        some = plain[:: size // max(1, TIMED_BYTES) | 1]  # an odd step, to sample all shapes
        spared = every * sum(map(len, some)) * len(ROWS) * DISPATCH_MS
        for _ in range(TIMINGS):
            plain_ms, packed_ms = map(sum, _time_both({unit: packed[unit] for unit in some}))
            if plain_ms + spared >= CLEARLY * packed_ms:
                return packed
        return PackedWeights()
    return packed


def use_huge_pages(address: int, size: int) -> None:
    """Ask the system to hold memory in huge pages, which is read faster; it may refuse."""
    start, end = -(-address // HUGE_PAGE) * HUGE_PAGE, (address + size) // HUGE_PAGE * HUGE_PAGE
    if start < end and hasattr(libc := ctypes.CDLL(None), "madvise"):
        for advice in ADVICE:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


@torch.inference_mode()
def _time_both(units: Mapping[Unit, Packed]) -> list[list[float]]:
    """Return (plain, packed): the milliseconds of all `units` with plain and with packed weights,
    for each of `ROWS`. Each is the minimum of several rounds, since other load can only add
    time."""
    best = [[math.inf] * len(ROWS), [math.inf] * len(ROWS)]
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        for index, rows in enumerate(ROWS):
            inputs = [torch.ones(rows, p.shape[1], dtype=p.dtype) for p in units.values()]
            for way in (0, 1):
                started = time.perf_counter()
                for (unit, packed), each in zip(units.items(), inputs, strict=True):
                    for call in (packed.multiply,) if way else unit:
                        call(each)
                took = 1e3 * (time.perf_counter() - started)
                best[way][index] = min(best[way][index], took)
        if turn and time.perf_counter() - begin > LIMIT_S:
            break
    return best


def can_pack_int8(module: nn.Module) -> TypeGuard[Int8Linear]:
    """Return whether a module is an int8 layer on a CPU that can be packed."""
    if type(module) is not Int8Linear or not module.weight.is_cpu:
        return False
    return can_multiply(bfloat16=False) and module.in_features % 2 == 0


def can_be_packed(module: nn.Module, least: Mapping) -> TypeGuard[nn.Linear]:
    """Return whether a module is a linear layer on a CPU that can be packed, and its weight has at
    least `least[dtype]` elements (default: 1)."""
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return False
    weight: torch.Tensor = module.weight
    return (
        weight.is_cpu
        and bool(POOL and FEATURES.get("avx2") and FEATURES.get("fma"))
        and weight.dtype in (torch.float32, torch.bfloat16)
        and not (weight.dtype == torch.bfloat16 and module.in_features % 2)
        and type(weight) in (nn.Parameter, torch.Tensor)
        and weight.numel() >= least.get(weight.dtype, 1)
    )
