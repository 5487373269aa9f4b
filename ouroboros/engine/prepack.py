"""Prepacked weights: on a CPU, linear layers that process a few rows about as fast as one.

Reading the weights limits the speed of a call with a few rows. With weights in oneDNN's layout,
matrix products of 1 to 8 rows run at memory bandwidth, in float32 and bfloat16. torch's own matrix
products may be several times slower, or faster, depending on processor, dtype and rows. So both are
timed on the model's layers, and each row count uses the faster one. Up to 128 rows are multiplied
by our own kernel if its results equal oneDNN's bitwise, which is tested for each shape. int8 layers
are packed for our kernel alone.

Invariant: the model is not changed. Packed weights are copies, used by kernels, or by the model's
linear layers within `PackedWeights.used`; other calls of the model use its own weights.
"""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import product
from typing import Any, TypeGuard

import psutil
import torch
from torch import nn

from ouroboros.engine.cpu_intrinsics import COLUMNS, INT8_STEP, INT8_TILES, can_multiply
from ouroboros.engine.cpu_kernels import kernels
from ouroboros.engine.frozen import Frozen
from ouroboros.engine.quantised import Int8Linear

ROWS = (1, 2, 4, 16)  # row counts timed; counts in between use the result of the one below
HINT = 4  # rows that the layout is optimised for; optimising for fewer gains nothing
MOST = 128  # most rows of one call of our own kernel
SERIAL = 1 << 16  # multiplications below which one thread is as fast as several
HUGE_PAGE, ADVICE = 2 << 20, (14, 25)  # MADV_HUGEPAGE, then MADV_COLLAPSE
SMALLEST = {torch.float32: 1 << 20, torch.bfloat16: 1 << 17}
"""Elements of the smallest weight to pack, by dtype; smaller ones gain nothing."""
FREE_SHARE = 0.5  # largest share of the free memory that the copies may take
TIMED_BYTES = 96 << 20  # weights to time: more than the processor's caches hold
ROUNDS, LIMIT_S = 5, 0.5  # rounds and time limit of the timing
DISPATCH_MS = 0.03  # overhead of calling a module, which fused calls avoid
CLEARLY = 0.9  # plain matmuls are used if they take less than this share of the packed time
COMPANY = (2, 5, 8, 17, 64, 256)  # row counts at which a row's result must equal that of one row
Unit = tuple[nn.Linear | Int8Linear, ...]
"""Layers with the same input that share one packed weight, or a single layer."""


class Packed:
    """A copy of the weights of some layers, concatenated, in oneDNN's layout.

    - `always`, for exact calls: use the copy for any number of rows. oneDNN may sum a single row in
      another order, so fewer than `HINT` rows are padded, which takes no longer
    - `address`: the address of the copy if our own kernel can multiply it, else 0
    - `alone`: whether the copy has a layout of our own, which only our kernel can read
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, always: bool = False) -> None:
        self.always, self.address, self.alone = always, 0, False
        self.scale: torch.Tensor | None = None  # of the columns of an int8 weight
        weight = weights[0].detach()
        if len(weights) > 1:
            weight = torch.cat([own.detach() for own in weights])
        self.shape, self.dtype = weight.shape, weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, HINT)
        size, expected = torch.ops.mkldnn._nbytes(self.weight), weight.nbytes
        expected = expected // len(weight) * -(-len(weight) // COLUMNS) * COLUMNS
        use_huge_pages(address := torch.ops.mkldnn.data_ptr(self.weight), size)
        half = weight.dtype == torch.bfloat16
        fits = can_multiply(half) and not (half and weight.shape[1] % 2)
        if fits and size == expected:
            self.address = address
        if not (fits and always):
            return
        # with AMX, and in some versions of oneDNN, the order of additions depends on the row count
        if not (self.address and _gives_the_same_bits(self.shape, weight.dtype)):
            padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % COLUMNS))
            steps = padded.view(-1, COLUMNS, weight.shape[1] // (1 + half), 1 + half)
            self.weight = steps.transpose(1, 2).contiguous()  # bfloat16: pairs of inputs
            self.address, self.alone = self.weight.data_ptr(), True
            use_huge_pages(self.address, self.weight.nbytes)

    @classmethod
    def int8(cls, layers: Unit) -> Packed:
        """Pack the weights of int8 layers, in a layout of our own."""
        self = cls.__new__(cls)
        self.always = self.alone = True
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self.shape, self.dtype = weight.shape, weight.dtype
        padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % COLUMNS))
        if INT8_TILES and weight.shape[1] % INT8_STEP == 0:  # quarters of columns, four inputs
            steps = padded.view(-1, 4, COLUMNS // 4, weight.shape[1] // INT8_STEP, 16, 4)
            self.weight = steps.permute(0, 3, 1, 4, 2, 5).contiguous()
        else:  # pairs of inputs
            pairs = padded.view(-1, COLUMNS, weight.shape[1] // 2, 2)
            self.weight = pairs.transpose(1, 2).contiguous()
        scales: list[Any] = [layer.scale for layer in layers]
        self.scale = torch.cat(scales).detach().float()
        self.address = self.weight.data_ptr()
        use_huge_pages(self.address, self.weight.nbytes)
        return self

    def checked(self) -> Packed:
        """Stop using our kernel if its results differ bitwise from oneDNN's; return self. A weight
        that only our kernel can read (`alone`) is not compared."""
        unknown = self.address and not self.alone
        if unknown and not _gives_the_same_bits(self.shape, self.dtype):
            self.address = 0
        return self

    def multiply(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return `input` [..., in] times the packed weight, plus `bias`, [..., out]."""
        rows = input.numel() // input.shape[-1]
        if self.alone and rows > MOST:
            parts = input.reshape(rows, -1).split(MOST)
            whole = torch.cat([self.multiply_by_kernel(part, bias) for part in parts])
            return whole.view(*input.shape[:-1], -1)
        if self.address and rows <= MOST:
            return self.multiply_by_kernel(input, bias)
        if self.always and rows < HINT:
            padded = nn.functional.pad(input.reshape(rows, -1), (0, 0, 0, HINT - rows))
            return self.multiply_by_onednn(padded, bias)[:rows].view(*input.shape[:-1], -1)
        return self.multiply_by_onednn(input, bias)

    def multiply_by_onednn(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Compute `multiply` with oneDNN."""
        linear = torch.ops.mkldnn._linear_pointwise.default
        return linear(input, self.weight, bias, "none", [], "")

    def multiply_by_kernel(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Compute `multiply` with our own kernel."""
        (columns, width), input = self.shape, input.contiguous()
        rows, kernel = input.numel() // width, kernels(input.dtype).multiply
        bias = None if bias is None else bias.to(input.dtype).contiguous()
        out, items = input.new_empty(*input.shape[:-1], columns), -(-columns // COLUMNS)
        assert kernel is not None
        kernel(
            *(items, rows, width, columns, input.data_ptr(), self.address),
            *(0 if bias is None else bias.data_ptr(), out.data_ptr()),
            0 if self.scale is None else self.scale.data_ptr(),
            threads=torch.get_num_threads() if rows * width * columns > SERIAL else 1,
        )
        return out


class JoinedProduct:
    """One matrix product for the layers of a unit, which are called in turn: the first computes it
    for all; each other layer takes its columns of the result."""

    def __init__(self, unit: Unit, packed: Packed) -> None:
        self.unit, self.packed = unit, packed
        self.last: tuple[torch.Tensor | None, Sequence[torch.Tensor]] = None, ()

    def part(self, index: int, input: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer `unit[index]` for `input`, [..., out]."""
        of, parts = self.last
        if index == 0 or of is not input:
            widths = [layer.out_features for layer in self.unit]
            parts = self.packed.multiply(input, None).split(widths, dim=-1)
        self.last = (None, ()) if index == len(self.unit) - 1 else (input, parts)
        bias = self.unit[index].bias
        return parts[index].contiguous() if bias is None else parts[index] + bias


class PackedWeights:
    """The packed weights of a model by unit; empty if nothing was packed. `rows`: the row counts
    in `ROWS` for which layers use the copies."""

    def __init__(self, units: Mapping[Unit, Packed] | None = None, rows: Sequence[int] = ROWS):
        self.units, self.rows = dict(units or {}), list(rows if units else ())
        self.frozen = Frozen(layer for unit in self.units for layer in unit)
        self._forwards = {}
        for unit, packed in self.units.items():
            joined = JoinedProduct(unit, packed)
            for index, layer in enumerate(unit if packed.scale is None else ()):
                self._forwards[layer] = partial(self._forward, layer, joined, index)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context manager: within it, the model's linear layers use the packed weights for row
        counts for which these are faster. No gradients are computed."""
        for layer, forward in self._forwards.items():
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer in self._forwards:
                layer.__dict__.pop("forward", None)

    def _forward(
        self, layer: Any, joined: JoinedProduct, index: int, input: torch.Tensor
    ) -> torch.Tensor:
        rows = input.numel() // layer.in_features
        same = rows and input.dtype == layer.weight.dtype
        if not same or ROWS[bisect(ROWS, rows) - 1] not in self.rows:
            return nn.Linear.forward(layer, input)
        if len(joined.unit) > 1:
            return joined.part(index, input)
        return joined.packed.multiply(input, layer.bias)


_SHARED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[PackedWeights]] = (
    weakref.WeakKeyDictionary()
)
"""The packed weights of each model, while a wrapper has them."""


def forget_packed(model: nn.Module) -> None:
    """Let the next `prepack_linears` pack this model's weights anew."""
    _SHARED.pop(model, None)


def prepack_linears(
    model: nn.Module, *, every: bool = False, timed: bool = True, groups: Sequence[Unit] = ()
) -> PackedWeights:
    """Pack a model's large float32 and bfloat16 linear layers on a CPU, if that is faster. Return
    the packed weights that another wrapper of the model has, if the weights are unchanged.

    Returns empty `PackedWeights` if torch has no oneDNN for this processor, if the copies would
    take more than half of the free memory, or if plain weights are faster for all row counts.

    - `every`, for exact calls: pack small layers too, and use packed weights for all row counts.
      Raises `ValueError` if a row's result depends on the number of rows
    - `timed`: with `every`, pack nothing if plain weights are faster in total
    - `groups`: tuples of layers that have the same input, multiplied in one product
    """
    least = {} if every else SMALLEST
    layers: list[Any] = [module for module in model.modules() if can_be_packed(module, least)]
    layers += [module for module in model.modules() if every and can_pack_int8(module)]
    grouped = {layer for group in groups for layer in group}
    units = [*groups, *((layer,) for layer in layers if layer not in grouped)]
    before = _SHARED.get(model, lambda: None)()
    if (
        before is not None
        and [*before.units] == units
        and all(packed.always == every for packed in before.units.values())
        and not before.frozen.changed
    ):
        return before
    size = sum(layer.weight.nbytes for layer in layers)
    if not layers or size > FREE_SHARE * psutil.virtual_memory().available:
        return PackedWeights()
    made = {
        unit: Packed.int8(unit)
        if type(unit[0]) is Int8Linear
        else Packed([layer.weight for layer in unit], always=every).checked()
        for unit in units
    }
    used: Sequence[int] = ROWS
    if every:
        units = [unit for unit in units if made[unit].scale is None]  # integers add up exactly
        for each in {(made[unit].shape, made[unit].dtype) for unit in units}:
            _check_rows(*each)
    if not every or (timed and units and size >= TIMED_BYTES):  # times of small ones are noise
        some = units[:: size // max(1, TIMED_BYTES) | 1]  # an odd step, to sample all shapes
        plain_ms, packed_ms = _time_both({unit: made[unit] for unit in some})
        if every:
            spared = sum(map(len, some)) * len(ROWS) * DISPATCH_MS
            used = ROWS if sum(plain_ms) + spared >= CLEARLY * sum(packed_ms) else ()
        else:
            times = zip(ROWS, plain_ms, packed_ms, strict=True)
            used = [rows for rows, plain, packed in times if plain >= CLEARLY * packed]
        if not used:
            return PackedWeights()
    found = PackedWeights(made, used)
    _SHARED[model] = weakref.ref(found)
    return found


def use_huge_pages(address: int, size: int) -> None:
    """Ask the system to hold memory in huge pages, which is read faster; it may refuse."""
    start, end = -(-address // HUGE_PAGE) * HUGE_PAGE, (address + size) // HUGE_PAGE * HUGE_PAGE
    if start < end and hasattr(libc := ctypes.CDLL(None), "madvise"):
        for advice in ADVICE:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _probe(shape: torch.Size, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight of this shape [out, in] and a row [1, in] whose exact product is zero. The
    computed product consists of rounding errors, so it changes with the order of additions."""
    draw = torch.Generator().manual_seed(0)
    half, some = shape[1] // 2, min(shape[0], COLUMNS)
    shuffled = torch.randperm(2 * half, generator=draw)
    weight = torch.zeros(some, shape[1], dtype=dtype)
    row = torch.zeros(1, shape[1], dtype=torch.float32)
    signs = torch.randint(0, 2, (some, half), generator=draw).mul_(2).sub_(1)
    exponents = 30 * torch.rand(half, generator=draw, dtype=torch.float32)
    values = torch.exp(exponents).to(dtype).float()
    for sign, place in ((1, shuffled[:half]), (-1, shuffled[half:])):
        weight[:, place] = (sign * signs).to(dtype)
        row[:, place] = values
    return weight.repeat(-(-shape[0] // some), 1)[: shape[0]], row.to(dtype)


@cache
def _gives_the_same_bits(shape: torch.Size, dtype: torch.dtype) -> bool:
    """Return whether our kernel's products with this weight shape equal oneDNN's bitwise."""
    with torch.inference_mode():
        weight, row = _probe(shape, dtype)
        packed, rows, bias = Packed([weight]), row.repeat(5, 1), weight[:, 0].contiguous()
        return torch.equal(
            packed.multiply_by_kernel(rows, bias), packed.multiply_by_onednn(rows, bias)
        )


@cache
@torch.inference_mode()
def _check_rows(shape: torch.Size, dtype: torch.dtype) -> None:
    """Raise `ValueError` if a row's product with weights of this shape depends on the row count."""
    weight, row = _probe(shape, dtype)
    packed = Packed([weight], always=True).checked()
    alone = packed.multiply(row, None)
    for rows in COMPANY:
        if not torch.equal(packed.multiply(row.repeat(rows, 1), None), alone.expand(rows, -1)):
            raise ValueError(
                f"calls cannot be exact here: {rows} rows times weights {tuple(shape)} in {dtype} "
                "round differently from one"
            )


@torch.inference_mode()
def _time_both(units: Mapping[Unit, Packed]) -> list[list[float]]:
    """Return (plain, packed): the milliseconds of all `units` with plain and with packed weights,
    for each of `ROWS`. Each is the minimum of several rounds, since other load can only add
    time."""
    weights = PackedWeights(units)
    best = [[math.inf] * len(ROWS), [math.inf] * len(ROWS)]
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        for (index, rows), packed in product(enumerate(ROWS), (False, True)):
            wide = [(unit, unit[0].in_features, unit[0].weight.dtype) for unit in units]
            inputs = [(unit, torch.ones(rows, width, dtype=kind)) for unit, width, kind in wide]
            with weights.used() if packed else nullcontext():
                started = time.perf_counter()
                for unit, each in inputs:
                    for layer in unit:
                        layer(each)
                took = 1e3 * (time.perf_counter() - started)
            best[packed][index] = min(best[packed][index], took)
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
    if not weight.is_cpu or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False  # oneDNN's layout needs x86 with AVX2
    half = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    plain = type(weight) in (nn.Parameter, torch.Tensor) and weight.is_contiguous()
    whole = weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return (
        plain
        and (whole or half)
        and weight.numel() >= least.get(weight.dtype, 1)
        and not weight.is_inference()
    )
