"""Prepacked weights: on a CPU, linear layers that process a few rows about as fast as one.

Reading the weights limits the speed of a call with a few rows. With weights in oneDNN's layout,
matrix products of 1 to 8 rows run at memory bandwidth, in float32 and bfloat16. torch's own matrix
products may be several times slower, or faster, depending on processor, dtype and rows. So both are
timed on the model's layers, and each row count uses the faster one. Up to 64 rows are multiplied by
our own kernel if its results equal oneDNN's bitwise, which is tested for each shape.

Models that this library loads or builds are packed; call `CachedModel.prepack` for others.
Invariant: the model's weights are not changed or moved. A packed layer keeps a second copy and uses
it only while the weight is unchanged. Each call detects weights that were replaced or written to.
Writes through `weight.data`, which torch does not count, are detected by comparing samples: a few
elements of each weight when a sequence begins, and in `generate` elements of every row and column.
Copies of a model are not packed.
"""

from __future__ import annotations

import ctypes
import logging
import math
import time
import weakref
from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import TypeGuard

import psutil
import torch
from torch import nn

from ouroboros.engine.cpu_intrinsics import COLUMNS, can_multiply
from ouroboros.engine.cpu_kernels import kernels
from ouroboros.engine.static import active_modes

ROWS = (1, 2, 4, 16)  # row counts timed; counts in between use the result of the one below
HINT = 4  # rows that the layout is optimised for; optimising for fewer gains nothing
MOST = 64  # most rows for our own kernel; with more, oneDNN's is as fast
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
SAMPLES = 64  # elements of a weight that are compared when a sequence begins
log = logging.getLogger(__name__)


class Packed:
    """A copy of a weight in oneDNN's layout. `Packed()` has no copy: the layer uses its plain
    weight.

    - `of`: the weight's `_state` when it was copied
    - `faster`: for each of `ROWS`, whether to use the copy for that many rows
    - `always`, for exact calls: use the copy for any number of rows. oneDNN may sum a single row in
      another order, so fewer than `HINT` rows are padded, which takes no longer
    - `copied`: the weights to concatenate in the copy (None: `weight` alone; empty: no copy,
      because another layer of the group has it)
    - `address`: the address of the copy if our own kernel can multiply it, else 0
    """

    joined: JoinedProduct | None = None
    alone = False  # whether the copy has a layout of our own, which only our kernel can read

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        *,
        always: bool = False,
        copied: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.of: tuple | None = None
        self.always, self.faster, self.address = always, (always,) * len(ROWS), 0
        if weight is not None:
            self.source = weight.detach()  # keeps the memory from being reused
            self.of = _state(weight)
            if copied := [own.detach() for own in ([weight] if copied is None else copied)]:
                self._copy(copied[0] if len(copied) == 1 else torch.cat(copied))

    def _copy(self, weight: torch.Tensor) -> None:
        self.shape = weight.shape
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, HINT)
        size, expected = torch.ops.mkldnn._nbytes(self.weight), weight.nbytes
        expected = expected // len(weight) * -(-len(weight) // COLUMNS) * COLUMNS
        use_huge_pages(address := torch.ops.mkldnn.data_ptr(self.weight), size)
        half = weight.dtype == torch.bfloat16
        fits = can_multiply(half) and not (half and weight.shape[1] % 2)
        if fits and size == expected:
            self.address = address
        if not (fits and self.always):
            return
        # with AMX, and in some versions of oneDNN, the order of additions depends on the row count
        if not (self.address and _gives_the_same_bits(self.shape, weight.dtype)):
            padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % COLUMNS))
            steps = padded.view(-1, COLUMNS, weight.shape[1] // (1 + half), 1 + half)
            self.weight = steps.transpose(1, 2).contiguous()  # bfloat16: pairs of inputs
            self.address, self.alone = self.weight.data_ptr(), True
            use_huge_pages(self.address, self.weight.nbytes)

    def __reduce__(self) -> tuple:  # copies of a model are not packed
        return Packed, ()

    def checked(self) -> Packed:
        """Stop using our kernel if its results differ bitwise from oneDNN's; return self. A weight
        that only our kernel can read (`alone`) is not compared."""
        unknown = self.address and not self.alone
        if unknown and not _gives_the_same_bits(self.shape, self.source.dtype):
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
            threads=torch.get_num_threads() if rows * width * columns > SERIAL else 1,
        )
        return out


class JoinedProduct:
    """One matrix product for several layers with the same input. The first module that is called
    computes it for all; each other module then takes its columns of the result."""

    def __init__(self, layers: Sequence[PackedLinear]) -> None:
        self.first, self.widths = layers[0].packed, [layer.out_features for layer in layers]
        self.names = [id(layer) for layer in layers]
        self.last: tuple = (lambda: None), None, {}

    def part(self, layer: PackedLinear, input: torch.Tensor) -> torch.Tensor:
        """Return the output of `layer` for `input`, [..., out]. Compute the product again if
        `input` is not the last call's tensor or was written to since, or if the layer has already
        taken its columns."""
        of, before, parts = self.last  # read once: another thread may replace it
        found = None
        if id(layer) in parts and of() is input and _is_unwritten(input, before):
            found = parts.pop(id(layer))
        if found is None:
            outputs = self.first.multiply(input, None).split(self.widths, dim=-1)
            parts = dict(zip(self.names, outputs, strict=True))
            found, before = parts.pop(id(layer)), _writes(input)
        self.last = weakref.ref(input), before if parts else None, parts
        return found.contiguous() if layer.bias is None else found + layer.bias


class PackedLinear(nn.Linear):
    """A linear layer that uses its packed weight if that is faster and no gradient is needed, else
    its plain weight."""

    packed: Packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, own = self.weight, self.packed
        rows = input.numel() // self.in_features
        if (
            torch.compiler.is_compiling()
            or not own.faster[bisect(ROWS, rows) - 1]
            or own.of != _state(weight)
            or is_patched()
            or input.dtype != weight.dtype
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cpu")
            or not (input.is_cpu and rows)
        ):
            return super().forward(input)
        if own.joined is not None:
            return own.joined.part(self, input)
        return own.multiply(input, self.bias)


class PackedWeights:
    """The packed layers of a model; empty if nothing was packed. `facts` has measurements by name:

    - "layers": number of packed layers; "bytes": size of their weights
    - "used": the row counts in `ROWS` for which packed weights are used
    - if the layers were timed, "rows": `ROWS`; "plain_ms" and "packed_ms": for each of these row
      counts, milliseconds of the timed layers with plain and with packed weights
    """

    def __init__(
        self,
        layers: Sequence[PackedLinear] = (),
        facts: dict | None = None,
        groups: Sequence[tuple] = (),
    ) -> None:
        self.layers = list(layers)
        self.facts, self.groups = facts or {}, list(groups)
        views = [_sample_elements(layer.packed.source) for layer in layers]
        self.views = [view[:: max(1, len(view) // SAMPLES)] for view in views], views
        self.seen = [torch.cat(each) for each in self.views if each]

    def __reduce__(self) -> tuple:
        return PackedWeights, ()

    @property
    def stale(self) -> bool:
        """Whether a weight has changed, `is_patched()`, or no layer is packed."""
        changed = any(own.packed.of != _state(own.weight) for own in self.layers)
        return not self.layers or changed or is_patched()

    def drop(self) -> None:
        """Use the plain weights from now on, and drop the packed ones."""
        for layer in self.layers:
            layer.packed = Packed()
        self.layers, self.facts = [], {}

    def check(self, *, closely: bool) -> None:
        """Drop the packed weights, with a warning, if sampled elements of the weights have changed;
        `closely` samples every row and column."""
        if self.layers and not torch.equal(torch.cat(self.views[closely]), self.seen[closely]):
            self.drop()
            log.warning(
                "weights were changed through weight.data: their packed copies are no longer "
                "used; call prepack() on the CachedModel to pack them again"
            )

    def before_call(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        """Forward pre-hook of the model: `check` some elements when a sequence begins."""
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is None or not cache.get_seq_length():
            self.check(closely=False)


def prepack_linears(
    model: nn.Module, *, every: bool = False, timed: bool = True, groups: Sequence[tuple] = ()
) -> PackedWeights:
    """Pack a model's large float32 and bfloat16 linear layers on a CPU, if that is faster.

    Returns empty `PackedWeights` if torch has no oneDNN for this processor, if the copies would
    take more than half of the free memory, or if plain weights are faster for all row counts.

    - `every`, for exact calls: pack small layers too, and use packed weights for all row counts.
      Raises `ValueError` if a row's result depends on the number of rows
    - `timed`: with `every`, pack nothing if plain weights are faster in total
    - `groups`: tuples of layers that have the same input, multiplied in one product
    """
    least = {} if every else SMALLEST
    layers = [module for module in model.modules() if can_be_packed(module, least)]
    for hook in list(model._forward_pre_hooks.values()):
        if isinstance(before := getattr(hook, "__self__", None), PackedWeights):
            same = (before.layers, before.groups) == (layers, list(groups))
            if every and same and not before.stale and before.layers[0].packed.always:
                return before
            before.drop()
    size = sum(layer.weight.nbytes for layer in layers)
    if not layers or size > FREE_SHARE * psutil.virtual_memory().available:
        return PackedWeights()
    units = _pack(layers, groups, always=every)
    facts: dict[str, object] = {"layers": len(layers), "bytes": size, "used": ROWS}
    if every:
        for each in {(unit[0].packed.shape, unit[0].weight.dtype) for unit in units}:
            _check_rows(*each)
    if not every or (timed and size >= TIMED_BYTES):  # times of small models would be noise
        some = units[:: size // max(1, TIMED_BYTES) | 1]  # an odd step, to sample all shapes
        plain, packed = _time_both(some)
        faster = tuple(a >= CLEARLY * b for a, b in zip(plain, packed, strict=True))
        if every:
            spared = sum(map(len, some)) * len(ROWS) * DISPATCH_MS
            faster = (sum(plain) + spared >= CLEARLY * sum(packed),) * len(ROWS)
        for layer in layers:
            layer.packed.faster = faster
        used = [rows for rows, better in zip(ROWS, faster, strict=True) if better]
        facts |= {"rows": ROWS, "plain_ms": plain, "packed_ms": packed, "used": used}
        if not used:
            for layer in layers:
                layer.packed = Packed()
            return PackedWeights()
    found = PackedWeights(layers, facts, groups)
    model.register_forward_pre_hook(found.before_call, with_kwargs=True)
    return found


def _pack(
    layers: Sequence[PackedLinear], groups: Sequence[tuple], *, always: bool
) -> list[tuple[PackedLinear, ...]]:
    """Pack layers in place; return the groups, then each remaining layer as a tuple of one. Layers
    of a group share one packed weight, which the first layer holds. `always`: see `Packed`."""
    grouped = {layer for group in groups for layer in group}
    units = [*groups, *((layer,) for layer in layers if layer not in grouped)]
    for unit in units:
        weights = [layer.weight for layer in unit]
        for layer in unit:
            copied = weights if layer is unit[0] else ()
            layer.packed = Packed(layer.weight, always=always, copied=copied).checked()
            layer.__class__ = PackedLinear  # last: after an error above, the layer stays plain
        if len(unit) > 1:
            joined = JoinedProduct(unit)
            for layer in unit:
                layer.packed.joined = joined
    return units


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
        packed, rows, bias = Packed(weight), row.repeat(5, 1), weight[:, 0].contiguous()
        return torch.equal(
            packed.multiply_by_kernel(rows, bias), packed.multiply_by_onednn(rows, bias)
        )


@cache
@torch.inference_mode()
def _check_rows(shape: torch.Size, dtype: torch.dtype) -> None:
    """Raise `ValueError` if a row's product with weights of this shape depends on the row count."""
    weight, row = _probe(shape, dtype)
    packed = Packed(weight, always=True).checked()
    alone = packed.multiply(row, None)
    for rows in COMPANY:
        if not torch.equal(packed.multiply(row.repeat(rows, 1), None), alone.expand(rows, -1)):
            raise ValueError(
                f"calls cannot be exact here: {rows} rows times weights {tuple(shape)} in {dtype} "
                "round differently from one: leave exact=False"
            )


@torch.inference_mode()
def _time_both(units: list) -> list[list[float]]:
    """Return (plain, packed): the milliseconds of all `units` (tuples of layers that share an
    input) with plain and with packed weights, for each of `ROWS`. Each is the minimum of several
    rounds, since other load can only add time."""
    best = [[math.inf] * len(ROWS), [math.inf] * len(ROWS)]
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        for (index, rows), packed in product(enumerate(ROWS), (False, True)):
            wide = [(unit, unit[0].in_features, unit[0].weight.dtype) for unit in units]
            inputs = [(unit, torch.ones(rows, width, dtype=kind)) for unit, width, kind in wide]
            for unit in units:
                for layer in unit:
                    layer.packed.faster = (packed,) * len(ROWS)
            started = time.perf_counter()
            for unit, each in inputs:
                for layer in unit:
                    layer(each)
            took = 1e3 * (time.perf_counter() - started)
            best[packed][index] = min(best[packed][index], round(took, 3))
        if turn and time.perf_counter() - begin > LIMIT_S:
            break
    return best


def is_patched() -> bool:
    """Return whether `nn.Linear.forward` or `torch.nn.functional.linear` was replaced, or a torch
    mode that must see each operator is active."""
    own = getattr(nn.Linear.forward, "__globals__", None) is vars(nn.modules.linear)
    return not own or nn.functional.linear is not torch._C._nn.linear or bool(active_modes())


def can_be_packed(module: nn.Module, least: Mapping) -> TypeGuard[PackedLinear]:
    """Return whether a module is a linear layer on a CPU that can be packed, and its weight has at
    least `least[dtype]` elements (default: 1)."""
    if not isinstance(module, nn.Linear) or type(module) not in (nn.Linear, PackedLinear):
        return False
    if is_patched():
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
    """Return values that change when a weight is replaced or written to; () for an inference
    tensor, whose writes torch does not count."""
    if weight.is_inference():
        return ()
    return weight.data_ptr(), weight._version, weight.shape, weight.stride()


def _writes(input: torch.Tensor) -> int | torch.Tensor:
    """Return torch's count of writes to a tensor, or a copy if it has none (inference tensors)."""
    return input.clone() if input.is_inference() else input._version


def _is_unwritten(input: torch.Tensor, before: int | torch.Tensor) -> bool:
    """Return whether a tensor was not written to since `_writes` returned `before`."""
    if isinstance(before, torch.Tensor):
        return torch.equal(input, before)
    return input._version == before


def _sample_elements(weight: torch.Tensor) -> torch.Tensor:
    """Return elements of a weight at regular distances, as a 1-d view of their bits (integers). The
    distance is such that every row and every column is represented."""
    step = min(weight.shape)
    while math.gcd(step, weight.shape[1]) > 1:
        step -= 1
    bits = {2: torch.int16, 4: torch.int32}[weight.element_size()]
    return weight.view(-1).view(bits)[::step]
