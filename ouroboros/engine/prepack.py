"""Prepacked weights: on a CPU, linear layers that process a few rows about as fast as one.

Reading the weights limits the speed of a call with a few rows. With weights in oneDNN's layout,
matrix products of 1 to 16 rows run at memory bandwidth, in float32 and bfloat16. torch's own matrix
products may be several times slower, or faster, depending on processor, dtype and rows. So both are
timed on the model's layers, and each row count uses the faster one.

Models that this library loads or builds are packed; call `CachedModel.prepack` for others.
Invariant: the model's weights are not changed or moved. A packed layer keeps a second copy and uses
it only while the weight is unchanged. Each call detects weights that were replaced or written to.
Writes through `weight.data`, which torch does not count, are detected by comparing samples: a few
elements of each weight when a sequence begins, and in `generate` elements of every row and column.
Copies of a model are not packed.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeGuard

import psutil
import torch
from torch import nn

ROWS = (1, 2, 4, 16)  # row counts timed; others use the result of the next smaller one
HINT = 4  # row count that the layout is optimised for; fewer rows are not faster
SMALLEST = {torch.float32: 1 << 20, torch.bfloat16: 1 << 17}
"""Elements of the smallest weight to pack, by dtype; smaller ones gain nothing."""
FREE_SHARE = 0.5  # largest share of the free memory that the copies may take
TIMED_BYTES = 96 << 20  # weights to time: more than the processor's caches hold
ROUNDS, LIMIT_S = 5, 0.5  # rounds and time limit of the timing
DISPATCH_MS = 0.03  # overhead of calling a module, which fused calls avoid
CLEARLY = 0.9  # plain matmuls are used if they take less than this share of the packed time
COMPANY = (2, 5, 8, 17, 64, 256)  # row counts with which a row's result must be the same
SAMPLES = 64  # elements of a weight that are compared when a sequence begins
log = logging.getLogger(__name__)


class Packed:
    """A weight in oneDNN's layout, and `of`, the state of the weight that it was copied from.

    `faster`: for each of `ROWS`, whether the packed weight is faster. `always`, for exact calls:
    all row counts use the packed weight, and fewer than `HINT` rows are padded to `HINT`. That is
    no slower, and a single row would round differently.
    """

    def __init__(self, weight: torch.Tensor | None = None, *, always: bool = False) -> None:
        self.of: tuple | None = None
        self.always, self.faster = always, (always,) * len(ROWS)
        if weight is not None:
            self.source = weight.detach()  # keeps the memory from being reused
            self.of = _state(weight)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.source, HINT)

    joined: JoinedProduct | None = None

    def __reduce__(self) -> tuple:  # copies of a model are not packed
        return Packed, ()

    def multiply(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply rows [..., in] by the packed weight; return [..., out]."""
        multiply = torch.ops.mkldnn._linear_pointwise.default
        if self.always and (rows := input.numel() // input.shape[-1]) < HINT:
            padded = nn.functional.pad(input.reshape(rows, -1), (0, 0, 0, HINT - rows))
            out = multiply(padded, self.weight, bias, "none", [], "")
            return out[:rows].view(*input.shape[:-1], -1)
        return multiply(input, self.weight, bias, "none", [], "")


class JoinedProduct:
    """One matrix product for several layers with the same input: the first module that is called
    computes it, and each of the others takes its columns, once."""

    def __init__(self, layers: Sequence[PackedLinear]) -> None:
        self.first, self.widths = layers[0].packed, [layer.out_features for layer in layers]
        self.names = [id(layer) for layer in layers]
        self.last: tuple = (lambda: None), {}

    def part(self, layer: PackedLinear, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's columns of the product with `input`, [..., out]."""
        of, parts = self.last  # read once: another thread may replace it
        found = parts.pop(id(layer), None) if of() is input else None
        if found is None:
            outputs = self.first.multiply(input, None).split(self.widths, dim=-1)
            parts = dict(zip(self.names, outputs, strict=True))
            found = parts.pop(id(layer))
            self.last = weakref.ref(input), parts
        return found.contiguous() if layer.bias is None else found + layer.bias


class PackedLinear(nn.Linear):
    """A linear layer that uses its packed weight if that is faster and no gradient is needed."""

    packed: Packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, own = self.weight, self.packed
        rows = input.numel() // self.in_features
        if (
            torch.compiler.is_compiling()
            or not own.faster[bisect(ROWS, rows) - 1]
            or own.of != _state(weight)
            or input.dtype != weight.dtype
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or not (input.is_cpu and rows)
        ):
            return nn.functional.linear(input, weight, self.bias)
        if own.joined is not None:
            return own.joined.part(self, input)
        return own.multiply(input, self.bias)


class PackedWeights:
    """The packed layers of a model. `facts` records the number of `layers` and the `bytes` packed;
    for each of `rows` the `plain_ms` and `packed_ms` of the layers timed; and the row counts for
    which packed weights are `used`."""

    def __init__(self, layers: Sequence[PackedLinear] = (), facts: dict | None = None) -> None:
        self.layers = list(layers)
        self.facts, self.groups = facts or {}, list[tuple]()
        views = [_every_row_and_column(layer.packed.source) for layer in layers]
        self.views = [view[:: max(1, len(view) // SAMPLES)] for view in views], views
        self.seen = [torch.cat(each) for each in self.views if each]

    def __reduce__(self) -> tuple:
        return PackedWeights, ()

    @property
    def stale(self) -> bool:
        """Whether a weight has changed since it was packed, or no layer is packed."""
        return not self.layers or any(own.packed.of != _state(own.weight) for own in self.layers)

    def join(self, groups: Sequence[tuple]) -> None:
        """Replace the packed weights of each group of layers with the same input by one packed
        weight, which the first layer keeps."""
        self.groups, shapes = list(groups), set()
        for group in groups:
            weight = torch.cat([layer.weight.detach() for layer in group])
            joined = JoinedProduct(group)
            for layer in group:
                layer.packed.joined = joined
                del layer.packed.weight
            group[0].packed.weight = torch.ops.mkldnn._reorder_linear_weight(weight, HINT)
            shapes.add((weight.shape, weight.dtype))
        for each in shapes:
            _check_rows(*each)

    def give_up(self) -> None:
        """Use the plain weights from now on."""
        for layer in self.layers:
            layer.packed = Packed()
        self.layers, self.facts = [], {}

    def check(self, *, closely: bool) -> None:
        """Drop the packed weights, with a warning, if samples of the weights have changed."""
        if self.layers and not torch.equal(torch.cat(self.views[closely]), self.seen[closely]):
            self.give_up()
            log.warning(
                "weights were changed through weight.data: their packed copies are no longer "
                "used; call prepack() on the CachedModel to pack them again"
            )

    def before_call(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """Check a few samples when a sequence begins."""
        cache = kwargs.get("past_key_values")
        if cache is None or not cache.get_seq_length():
            self.check(closely=False)


def prepack_linears(
    model: nn.Module, *, every: bool = False, timed: bool = True, groups: Sequence[tuple] = ()
) -> PackedWeights:
    """Pack a model's large float32 and bfloat16 linear layers on a CPU, if that is faster.

    Packs nothing if torch has no oneDNN for this processor, if the copies would take more than half
    of the free memory, or if plain weights are faster for all row counts. `every`: pack small
    layers too, and use packed weights for all row counts, unless plain weights are faster in total
    (not compared without `timed`). `groups` of layers are joined.
    """
    for hook in list(model._forward_pre_hooks.values()):
        if isinstance(before := getattr(hook, "__self__", None), PackedWeights):
            joined = before.groups == list(groups)
            if every and joined and not before.stale and before.layers[0].packed.always:
                return before
            before.give_up()
    least = {} if every else SMALLEST
    layers = [module for module in model.modules() if can_be_packed(module, least)]
    size = sum(layer.weight.nbytes for layer in layers)
    if not layers or size > FREE_SHARE * psutil.virtual_memory().available:
        return PackedWeights()
    for layer in layers:
        layer.__class__ = PackedLinear
        layer.packed = Packed(layer.weight, always=every)  # type: ignore[assignment]
    facts: dict[str, object] = {"layers": len(layers), "bytes": size, "used": ROWS}
    if every:
        for each in {(layer.weight.shape, layer.weight.dtype) for layer in layers}:
            _check_rows(*each)
    if not every or (timed and size >= TIMED_BYTES):  # small models: the same choice at each load
        plain, packed = _time_both(layers)
        faster = tuple(a >= CLEARLY * b for a, b in zip(plain, packed, strict=True))
        if every:
            spared = len(layers) * len(ROWS) * DISPATCH_MS
            faster = (sum(plain) + spared >= CLEARLY * sum(packed),) * len(ROWS)
        for layer in layers:
            layer.packed.faster = faster
        used = [rows for rows, better in zip(ROWS, faster, strict=True) if better]
        facts |= {"rows": ROWS, "plain_ms": plain, "packed_ms": packed, "used": used}
        if not used:
            for layer in layers:
                layer.packed = Packed()
            return PackedWeights()
    found = PackedWeights(layers, facts)
    found.join(groups)
    model.register_forward_pre_hook(found.before_call, with_kwargs=True)
    return found


@torch.inference_mode()
def _check_rows(shape: torch.Size, dtype: torch.dtype) -> None:
    """Raise `ValueError` if a row's result with weights of this shape depends on the row count.

    The terms of the tested sums cancel, so that only rounding errors are left.
    """
    draw = torch.Generator().manual_seed(0)
    half = shape[1] // 2
    shuffled = torch.randperm(2 * half, generator=draw)
    weight, row = torch.zeros(shape, dtype=dtype), torch.zeros(1, shape[1])
    signs = torch.randint(0, 2, (shape[0], half), generator=draw).mul_(2).sub_(1)
    values = torch.exp(30 * torch.rand(half, generator=draw)).to(dtype).float()
    for sign, place in ((1, shuffled[:half]), (-1, shuffled[half:])):
        weight[:, place] = (sign * signs).to(dtype)
        row[:, place] = values
    packed, row = Packed(weight, always=True), row.to(dtype)
    alone = packed.multiply(row, None)
    for rows in COMPANY:
        if not torch.equal(packed.multiply(row.repeat(rows, 1), None), alone.expand(rows, -1)):
            raise ValueError(
                f"calls cannot be exact here: {rows} rows times weights {tuple(shape)} in {dtype} "
                "round differently from one: leave exact=False"
            )


@torch.inference_mode()
def _time_both(layers: list) -> list[list[float]]:
    """Return the milliseconds of plain and of packed matmuls for each of `ROWS`, summed over some
    of the layers. Takes the minimum of several rounds, because other load can only add time."""
    some = layers[:: max(1, sum(layer.weight.nbytes for layer in layers) // TIMED_BYTES)]
    best = [[math.inf] * len(ROWS), [math.inf] * len(ROWS)]
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        for (index, rows), packed in product(enumerate(ROWS), (False, True)):
            inputs = [torch.ones(rows, own.in_features, dtype=own.weight.dtype) for own in some]
            for layer in some:
                layer.packed.faster = (packed,) * len(ROWS)
            started = time.perf_counter()
            for layer, each in zip(some, inputs, strict=True):
                layer(each)
            took = 1e3 * (time.perf_counter() - started)
            best[packed][index] = min(best[packed][index], round(took, 3))
        if turn and time.perf_counter() - begin > LIMIT_S:
            break
    return best


def can_be_packed(module: nn.Module, least: Mapping) -> TypeGuard[PackedLinear]:
    """Return whether a module is a linear layer on a CPU that can be packed, with at least
    `least[dtype]` weights."""
    if not isinstance(module, nn.Linear) or type(module) not in (nn.Linear, PackedLinear):
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


def _state(weight: torch.Tensor) -> tuple:
    """Return values that change when a weight is replaced or written to."""
    if weight.is_inference():
        return ()
    return weight.data_ptr(), weight._version, weight.shape, weight.stride()


def _every_row_and_column(weight: torch.Tensor) -> torch.Tensor:
    """Return a view of some elements, as integers, that covers every row and column of a weight."""
    step = min(weight.shape)
    while math.gcd(step, weight.shape[1]) > 1:
        step -= 1
    bits = {2: torch.int16, 4: torch.int32}[weight.element_size()]
    return weight.view(-1).view(bits)[::step]
