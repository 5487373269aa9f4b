"""Matrix products of a few rows with large weights, on a GPU, which read the weights only once.

Each program computes a block of outputs for up to 64 rows. int8 weights are dequantised in
registers; they are the left operand, which Hopper's tensor cores can read from registers. No sum is
split between programs, so one kernel suffices and the order of additions is fixed.

At a shape's first call (in the warm-up before a graph is captured), all block sizes and torch's own
matmul are timed, and the fastest is used. A block size that fails or gives a wrong result is left
out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch
    triton = None

BLOCKS = ((16, 512, 4, 3), (32, 256, 4, 4), (64, 128, 4, 4), (64, 256, 4, 3), (128, 128, 8, 3))
"""Block sizes: (outputs per tile, inputs per tile, warps, loop stages)."""
MOST_ROWS = 64  # rows per program
ROWS = (1, 16, 32, MOST_ROWS, 256)  # row counts are rounded up to these to choose a kernel
MOST = {True: ROWS[-1], False: MOST_ROWS}
"""Most rows for which kernels are tried, by whether the weight is int8."""
PACKED_ROWS = 8  # up to this many rows, torch's int8 kernel for bfloat16 on a CPU is faster
TOLERANCE = 2e-2
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
Product = Callable[[], torch.Tensor]
log = logging.getLogger(__name__)
_chosen: dict[tuple, str] = {}


@torch.library.custom_op("ouroboros::product", mutates_args=())
def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `x` [..., depth] times the transposed `weight` [outputs, depth], plus `bias` [outputs]
    if given, as [..., outputs] in x's dtype. The weight is int8 with a `scale` for each output, or
    has x's dtype. On a GPU, up to `MOST` rows use the fastest kernel; other calls use `plain`."""
    rows = x.numel() // x.shape[-1]
    if triton is None or not (x.is_cuda or INTERPRETED) or rows > MOST[scale is not None]:
        return plain(x, weight, scale, bias)
    found = candidates(x, weight, scale, bias)
    if not x.is_cuda:
        return found["32 x 256"]()
    size = next(size for size in ROWS if rows <= size)
    key = (size, weight.shape, weight.dtype, x.dtype, x.device)
    if key not in _chosen:
        ms = times_ms(found)
        _chosen[key] = min(ms, key=lambda name: ms[name])
    return found[_chosen[key]]()


@product.register_fake
def _(x, weight, scale=None, bias=None):
    return x.new_empty(*x.shape[:-1], len(weight))


def plain(x, weight, scale=None, bias=None) -> torch.Tensor:
    """Compute `product` with torch alone."""
    if scale is None:
        return nn.functional.linear(x, weight, bias)
    rows, depth = x.numel() // x.shape[-1], x.shape[-1]
    # torch's kernel reads out of bounds if a row's length is not a multiple of 16
    if x.is_cpu and x.dtype == torch.bfloat16 and rows <= PACKED_ROWS and not depth % 16:
        out = torch._weight_int8pack_mm(x.reshape(-1, depth), weight, scale)
        out = out.view(*x.shape[:-1], -1)
    else:
        out = nn.functional.linear(x, weight.to(x.dtype)) * scale
    return out if bias is None else out + bias


def candidates(x, weight, scale=None, bias=None) -> dict[str, Product]:
    """Return functions without arguments that each compute `product`, by name: "torch", and our
    kernel with each of `BLOCKS`, such as "32 x 256"."""
    found: dict[str, Product] = {"torch": lambda: plain(x, weight, scale, bias)}
    for block in BLOCKS:
        found[f"{block[0]} x {block[1]}"] = partial(_launch, x, weight, scale, bias, block)
    return found


def times_ms(found: dict[str, Product]) -> dict[str, float]:
    """Return the milliseconds of each of `candidates`, by name, on a GPU with cold caches. Leaves
    out, with a warning, those that fail or differ from torch's result."""
    times, right = {}, found["torch"]().float()
    for name, compute in found.items():
        try:
            off = ((compute().float() - right).norm() / right.norm()).nan_to_num(0.0).item()
            if off > TOLERANCE:
                raise ValueError(f"its sums are off by {off:.2g}")
            times[name] = triton.testing.do_bench(compute, warmup=2, rep=10, return_mode="min")
        except Exception as error:  # a block may exceed this GPU's shared memory
            log.warning("product by blocks of %s left out: %s", name, error)
    return times


def _launch(x, weight, scale, bias, block: tuple[int, int, int, int]) -> torch.Tensor:
    """Compute `product` with our kernel. `block` is (outputs per tile, inputs per tile, warps, loop
    stages), as in `BLOCKS`. A tile has 16, 32 or 64 rows: the smallest number that holds all rows,
    or 64."""
    outputs, depth, warps, stages = block
    flat, out = x.reshape(-1, x.shape[-1]).contiguous(), x.new_empty(*x.shape[:-1], len(weight))
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(len(flat))))
    grid = triton.cdiv(len(weight), outputs), triton.cdiv(len(flat), rows)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        _multiply[grid](
            *(flat, weight, scale, bias, out, len(flat), *weight.shape),
            ROWS=rows,
            OUTPUTS=outputs,
            DEPTH=depth,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=warps,
            num_stages=stages,
        )
    return out


if triton is not None:

    @triton.jit(do_not_specialize=["rows"])
    def _multiply(
        x,
        weight,
        scale,
        bias,
        out,
        rows,
        outputs,
        depth,
        ROWS: tl.constexpr,
        OUTPUTS: tl.constexpr,
        DEPTH: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        """Compute one tile of the result: `OUTPUTS` outputs of `ROWS` rows."""
        output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        known, real = output < outputs, row < rows
        step = tl.arange(0, DEPTH)
        at_weight = weight + output.to(tl.int64)[:, None] * depth + step[None, :]
        at_x = x + row[None, :] * depth + step[:, None]
        sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for first in range(0, depth, DEPTH):
            inside = first + step < depth
            weights = tl.load(at_weight + first, mask=known[:, None] & inside[None, :], other=0)
            columns = tl.load(at_x + first, mask=inside[:, None] & real[None, :], other=0.0)
            sums += tl.dot(weights.to(columns.dtype), columns, input_precision=PRECISION)
        if scale is not None:
            sums *= tl.load(scale + output, mask=known, other=0.0).to(tl.float32)[:, None]
        if bias is not None:
            sums += tl.load(bias + output, mask=known, other=0.0).to(tl.float32)[:, None]
        to = row[None, :].to(tl.int64) * outputs + output[:, None]
        tl.store(out + to, sums.to(out.dtype.element_ty), mask=known[:, None] & real[None, :])
