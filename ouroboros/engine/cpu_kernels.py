"""CPU kernels for everything in a decoder except the linear layers.

Each kernel computes every row independently and in a fixed order, so a row's result is bitwise
identical in any call. Kernels take addresses and are called through ctypes, which costs one or two
microseconds. They run on the threads of torch's own pool, because a second pool would compete with
torch's waiting threads.

Callers size the buffers; there are no bounds checks. bfloat16 is passed as 16 bits, rounded to
nearest even wherever transformers' modules round.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

BLOCK = 8  # keys that are reduced together; blocks begin at multiples of 8
CHUNK = 64  # keys converted at a time, then used for all rows
PIECE = 2048  # columns of one work item of `gate`
FEW = 4096  # elements below which one thread is as fast as several
FAST: dict[str, Any] = {  # no rules for NaN and infinity
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}
ADDRESS = types.CPointer(types.int64)


@intrinsic
def _bits(context, value):
    """Return the bits of a float32."""
    return types.uint32(types.float32), lambda _, builder, __, arguments: builder.bitcast(
        arguments[0], ir.IntType(32)
    )


@intrinsic
def _float(context, bits):
    """Return the float32 with these bits."""
    return types.float32(types.uint32), lambda _, builder, __, arguments: builder.bitcast(
        arguments[0], ir.FloatType()
    )


@intrinsic
def _pointer(context, address):
    return types.voidptr(types.int64), lambda _, builder, __, arguments: builder.inttoptr(
        arguments[0], ir.IntType(8).as_pointer()
    )


@intrinsic
def _next(context, counter):
    """Return the counter and atomically add one to it."""
    return types.int64(ADDRESS), lambda _, builder, __, arguments: builder.atomic_rmw(
        "add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic"
    )


@numba.njit(forceinline=True, **FAST)
def _get(array, at):
    if array.itemsize == 2:  # bfloat16, which is the upper half of float32
        return _float(np.uint32(np.uint16(array[at])) << np.uint32(16))
    return np.float32(array[at])


@numba.njit(forceinline=True, **FAST)
def _rounded_bits(value):
    bits = _bits(np.float32(value))
    return bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))


@numba.njit(forceinline=True, **FAST)
def _round(array, value):
    """Round to the dtype of an array."""
    if array.itemsize == 2:
        return _float(_rounded_bits(value) & np.uint32(0xFFFF0000))
    return np.float32(value)


@numba.njit(forceinline=True, **FAST)
def _put(array, at, value):
    if array.itemsize == 2:
        array[at] = np.uint16(_rounded_bits(value) >> np.uint32(16))
    else:
        array[at] = value


@numba.njit(forceinline=True, **FAST)
def _exp(x):
    """Compute exp in float32 as Cephes' expf does, in a form that the compiler can vectorise."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    f = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4) * f + np.float32(1.3981999507e-3)
    y = y * f + np.float32(8.3334519073e-3)
    y = y * f + np.float32(4.1665795894e-2)
    y = y * f + np.float32(1.6666665459e-1)
    y = y * f + np.float32(5.0000001201e-1)
    power = _float(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return (y * f * f + f + np.float32(1)) * power


@numba.njit(**FAST)
def _norm(row, weight, out, eps):
    """Write the RMSNorm of `row` to `out`, which may be the same array."""
    total = np.float32(0)
    for at in range(len(row)):
        total += _get(row, at) * _get(row, at)
    scale = np.float32(1) / np.sqrt(total / np.float32(len(row)) + eps)
    for at in range(len(row)):
        _put(out, at, _get(weight, at) * _round(out, _get(row, at) * scale))


@numba.njit(**FAST)
def _turn(row, cos, sin, out, scale):
    """Apply the rotary embedding to a token's head; write the result times `scale`."""
    half = len(row) // 2
    for at in range(half):
        x, y = _get(row, at), _get(row, at + half)
        low = _round(row, x * _get(cos, at)) - _round(row, y * _get(sin, at))
        high = _round(row, y * _get(cos, at + half)) + _round(row, x * _get(sin, at + half))
        _put(out, at, scale * _round(row, low))
        _put(out, at + half, scale * _round(row, high))


@numba.njit(**FAST)
def _copy(source, head, first, slots, target):
    """Copy the keys or values in `slots` to `target` as float32; if `slots` is empty, copy from
    slot `first` on."""
    for row in range(len(target)):
        line = source[head, slots[row] if len(slots) else first + row]
        for column in range(len(line)):
            target[row, column] = _get(line, column)


@numba.njit(forceinline=True, **FAST)
def _multiply(query, keys, scores):
    """Write the dot products of a query with eight keys to `scores`."""
    k0, k1, k2, k3 = keys[0], keys[1], keys[2], keys[3]
    k4, k5, k6, k7 = keys[4], keys[5], keys[6], keys[7]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.float32(0)
    for column in range(len(query)):
        x = query[column]
        s0 += x * k0[column]
        s1 += x * k1[column]
        s2 += x * k2[column]
        s3 += x * k3[column]
        s4 += x * k4[column]
        s5 += x * k5[column]
        s6 += x * k6[column]
        s7 += x * k7[column]
    scores[0], scores[1], scores[2], scores[3] = s0, s1, s2, s3
    scores[4], scores[5], scores[6], scores[7] = s4, s5, s6, s7


@numba.njit(forceinline=True, **FAST)
def _accumulate(weights, values, total):
    """Add eight values, each times its weight, to `total`."""
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    w4, w5, w6, w7 = weights[4], weights[5], weights[6], weights[7]
    v0, v1, v2, v3 = values[0], values[1], values[2], values[3]
    v4, v5, v6, v7 = values[4], values[5], values[6], values[7]
    for column in range(len(total)):
        x = total[column] + w0 * v0[column] + w1 * v1[column] + w2 * v2[column]
        x += w3 * v3[column] + w4 * v4[column]
        total[column] = x + w5 * v5[column] + w6 * v6[column] + w7 * v7[column]


@numba.njit(**FAST)
def _softmax(scores, skip, count):
    """Replace scores by exp(score - maximum), but by 0 before `skip` and from `count` on; return
    their sum."""
    scores[:skip] = -np.inf
    scores[count:] = -np.inf
    top = scores.max()
    for at in range(len(scores)):
        scores[at] = _exp(scores[at] - top)
    scores[:skip] = 0
    scores[count:] = 0
    total = np.float32(0)
    for at in range(len(scores)):
        total += scores[at]
    return total


@numba.njit(**FAST)
def _attend(kv_head, group, queries, keys, values, first, lengths, straight, tails, out):
    """Attend with the scaled queries [n, heads, width] of one key head's group.

    A row's keys are, first, the full blocks of its `straight` slots, which it shares with other
    rows, and then the rest, which are gathered. One loop handles both, so they are summed in the
    same way.
    """
    n = len(queries)
    full = straight // BLOCK * BLOCK
    ends = (lengths + BLOCK - 1) // BLOCK * BLOCK
    shared = np.arange(first.min() // CHUNK * CHUNK, full.max(), CHUNK)
    room = max(CHUNK, (ends - full).max())
    scores = np.empty((group * n, ends.max() + CHUNK), np.float32)
    total = np.zeros((group * n, values.shape[2]), np.float32)
    slots = np.empty(room, np.int64)
    sums = np.empty(group * n, np.float32)
    for weighting in range(2):
        source = values if weighting else keys
        block = np.zeros((room, source.shape[2]), np.float32)
        for item in range(len(shared) + n):
            row, rows, at, count = item - len(shared), 1, 0, 0
            if row < 0:
                row, rows, at = 0, n, shared[item]
                count = min(CHUNK, full.max() - at)
                _copy(source, kv_head, at, slots[:0], block[:count])
            else:
                at, count = full[row], lengths[row] - full[row]
                for place in range(count):
                    slots[place] = at + place
                    if at + place >= straight[row]:
                        slots[place] = tails[row, at + place - straight[row]]
                _copy(source, kv_head, 0, slots, block[:count])
                block[count : ends[row] - at] = 0
            for r in range(row, row + rows):
                end = ends[r] - at if item >= len(shared) else min(count, full[r] - at)
                for place in range(max(0, first[r] - at) // BLOCK * BLOCK, end, BLOCK):
                    eight = block[place : place + BLOCK]
                    for g in range(group):
                        weights = scores[g * n + r, at + place : at + place + BLOCK]
                        if weighting:
                            _accumulate(weights, eight, total[g * n + r])
                        else:
                            _multiply(queries[r, kv_head * group + g], eight, weights)
        if not weighting:
            for r in range(n):
                low = first[r] // BLOCK * BLOCK
                for g in range(group):
                    seen = scores[g * n + r, low : ends[r]]
                    sums[g * n + r] = _softmax(seen, first[r] - low, lengths[r] - low)
    for r in range(n):
        for g in range(group):
            target = out[r, kv_head * group + g]
            for column in range(len(target)):
                _put(target, column, total[g * n + r, column] / sums[g * n + r])


def _pool():
    """Return the entry point of torch's thread pool (GNU or Intel OpenMP), or None."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_global_deps.so")
    try:
        enter = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return None
    enter.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    enter.restype = None
    return enter


POOL = _pool()


class Kernel:
    """A compiled kernel. Call it with integers and addresses, and with the number of work items."""

    def __init__(self, function) -> None:
        compiled: Any = numba.cfunc(types.void(ADDRESS), cache=True, **FAST)(function)
        self.compiled = compiled  # keeps the code alive
        self.address = compiled.address
        self.alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)

    def __call__(self, items: int, *arguments: int, threads: int = 1) -> None:
        block = (ctypes.c_int64 * (2 + len(arguments)))(0, items, *arguments)
        if threads > 1 and items > 1 and POOL is not None:
            POOL(self.address, block, min(threads, items), 0)
        else:
            self.alone(block)


class Kernels(NamedTuple):
    """The kernels for one dtype. Rows are [n, ...] and contiguous; address 0 means no array.

    `norm`(n, width, residual, addend, weight, out, eps): add to the residual in place, then norm.
    `rotate`(n, heads, kv_heads, width, qkv, cos, sin, q_norm, k_norm, eps, scale, slot, capacity,
    keys, values, queries): a row of qkv has the heads of q, then of k, then of v. Norm q and k and
    apply the rotary embedding; write keys and values [kv_heads, capacity, width] from `slot` on,
    and the scaled queries as float32.
    `attend`(n, heads, kv_heads, key width, value width, key capacity, value capacity, queries,
    keys, values, out, lengths, straight, tails, columns of tails, first): see `Reach`.
    `gate`(n, width, rows of gate and up, out): SiLU(gate) * up.

    `eps` and `scale` are the bits of float32.
    """

    norm: Kernel
    rotate: Kernel
    attend: Kernel
    gate: Kernel


@cache
def kernels(dtype: torch.dtype) -> Kernels:
    """Return the kernels for float32 or bfloat16, compiled now or loaded from numba's cache."""
    kind = np.uint16 if dtype == torch.bfloat16 else np.float32

    def norm(a):
        n, width, eps = a[2], a[3], _float(np.uint32(a[8]))
        residual = numba.carray(_pointer(a[4]), (n, width), kind)
        addend = numba.carray(_pointer(a[5]), (n, width), kind)
        weight = numba.carray(_pointer(a[6]), (width,), kind)
        out = numba.carray(_pointer(a[7]), (n, width), kind)
        row = _next(a)
        while row < a[1]:
            if a[5]:
                for at in range(width):
                    _put(residual[row], at, _get(residual[row], at) + _get(addend[row], at))
            _norm(residual[row], weight, out[row], eps)
            row = _next(a)

    def rotate(a):
        n, heads, kv_heads, width = a[2], a[3], a[4], a[5]
        qkv = numba.carray(_pointer(a[6]), (n, heads + 2 * kv_heads, width), kind)
        cos = numba.carray(_pointer(a[7]), (n, width), kind)
        sin = numba.carray(_pointer(a[8]), (n, width), kind)
        q_norm = numba.carray(_pointer(a[9]), (width,), kind)
        k_norm = numba.carray(_pointer(a[10]), (width,), kind)
        eps, scale, slot = _float(np.uint32(a[11])), _float(np.uint32(a[12])), a[13]
        keys = numba.carray(_pointer(a[15]), (kv_heads, a[14], width), kind)
        values = numba.carray(_pointer(a[16]), (kv_heads, a[14], width), kind)
        queries = numba.carray(_pointer(a[17]), (n, heads, width), np.float32)
        row = _next(a)
        while row < a[1]:
            for head in range(heads):
                q = qkv[row, head]
                if a[9]:
                    _norm(q, q_norm, q, eps)
                _turn(q, cos[row], sin[row], queries[row, head], scale)
            for head in range(kv_heads):
                k = qkv[row, heads + head]
                if a[10]:
                    _norm(k, k_norm, k, eps)
                _turn(k, cos[row], sin[row], keys[head, slot + row], np.float32(1))
                values[head, slot + row] = qkv[row, heads + kv_heads + head]
            row = _next(a)

    def attend(a):
        n, heads, kv_heads, width, out_width = a[2], a[3], a[4], a[5], a[6]
        queries = numba.carray(_pointer(a[9]), (n, heads, width), np.float32)
        keys = numba.carray(_pointer(a[10]), (kv_heads, a[7], width), kind)
        values = numba.carray(_pointer(a[11]), (kv_heads, a[8], out_width), kind)
        out = numba.carray(_pointer(a[12]), (n, heads, out_width), kind)
        lengths = numba.carray(_pointer(a[13]), (n,), np.int64)
        straight = numba.carray(_pointer(a[14]), (n,), np.int64)
        tails = numba.carray(_pointer(a[15]), (n, a[16]), np.int64)
        first = numba.carray(_pointer(a[17]), (n,), np.int64)
        group, head = heads // kv_heads, _next(a)
        while head < a[1]:
            _attend(head, group, queries, keys, values, first, lengths, straight, tails, out)
            head = _next(a)

    def gate(a):
        n, width = a[2], a[3]
        both = numba.carray(_pointer(a[4]), (n, 2, width), kind)
        out = numba.carray(_pointer(a[5]), (n, width), kind)
        pieces, item = (width + PIECE - 1) // PIECE, _next(a)
        while item < a[1]:
            row, start = item // pieces, item % pieces * PIECE
            for at in range(start, min(start + PIECE, width)):
                x = _get(both[row, 0], at)
                silu = _round(out[row], x / (np.float32(1) + _exp(-x)))
                _put(out[row], at, silu * _get(both[row, 1], at))
            item = _next(a)

    return Kernels(*(Kernel(function) for function in (norm, rotate, attend, gate)))
