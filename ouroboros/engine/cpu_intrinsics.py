"""LLVM code for operations that `ouroboros.engine.cpu_kernels` needs and numba does not offer."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ADDRESS = types.CPointer(types.int64)
COLUMNS, TOGETHER = 64, 4  # columns and rows that `multiply_block` keeps in registers
BYTE, INT, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOATS, INTS = ir.VectorType(FLOAT, 16), ir.VectorType(INT, 16)


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def can_multiply(bfloat16: bool) -> bool:
    """Return whether this processor has the instructions of `multiply_block` for the dtype."""
    features: Any = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("avx512f") and (features.get("avx512bf16") or not bfloat16))


@intrinsic
def bits_of(context, value):
    """Return the bits of a float32."""
    return types.uint32(types.float32), lambda _, builder, __, arguments: builder.bitcast(
        arguments[0], INT
    )


@intrinsic
def float_of(context, bits):
    """Return the float32 with these bits."""
    return types.float32(types.uint32), lambda _, builder, __, arguments: builder.bitcast(
        arguments[0], FLOAT
    )


@intrinsic
def pointer(context, address):
    """Convert an address to an untyped pointer."""
    return types.voidptr(types.int64), lambda _, builder, __, arguments: builder.inttoptr(
        arguments[0], BYTE.as_pointer()
    )


@intrinsic
def next_item(context, counter):
    """Return the number at a pointer that threads share, and increment it atomically."""
    return types.int64(ADDRESS), lambda _, builder, __, arguments: builder.atomic_rmw(
        "add", arguments[0], LONG(1), "monotonic"
    )


@intrinsic
def counter_at(context, address):
    """Convert a counter's address to the pointer that `next_item` takes."""
    return ADDRESS(types.int64), lambda _, builder, __, arguments: builder.inttoptr(
        arguments[0], LONG.as_pointer()
    )


@intrinsic
def call(context, address):
    """Call the function at an address, without arguments."""

    def generate(_, builder, __, arguments):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return ir.Constant(BYTE.as_pointer(), None)

    return types.void(types.int64), generate


def _multiplier(fetch: int):
    """Return a `multiply_block` that prefetches `fetch` cache lines (64 bytes each) per step."""

    @intrinsic
    def multiply_block(context, like, rows, stride, count, weight, sums, steps, more, ahead):
        """Multiply four rows by 64 columns of a weight over `steps` inputs (pairs of inputs in
        bfloat16). Write the products to `sums`, [4, 64] float32; with `more`, add them instead.

        `rows` is the first row's address, `stride` the bytes between rows. If `count` is below
        four, the first row takes the place of missing rows. Each step prefetches from `ahead` into
        the L2 cache. `like` is any array of the rows' dtype (bfloat16 as uint16).
        """
        half = like.dtype.bitwidth == 16

        def generate(_, builder, __, arguments):
            rows, stride, count, weight, sums, steps, more, ahead = arguments[1:]
            halves = ir.VectorType(_BFloat(), 32)

            def declare(name, returned, *parameters):
                known = builder.module.globals.get(name)
                kind = ir.FunctionType(returned, parameters)
                return known or ir.Function(builder.module, kind, name)

            def at(address, kind):
                return builder.inttoptr(address, kind.as_pointer())

            if half:
                dot = declare("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, FLOATS, halves, halves)
            else:
                fma = declare("llvm.fma.v16f32", FLOATS, FLOATS, FLOATS, FLOATS)
            prefetch = declare("llvm.prefetch.p0", ir.VoidType(), BYTE.as_pointer(), INT, INT, INT)
            zero, blank = FLOATS([0.0] * 16), INTS(ir.Undefined)
            starts = []
            for row in range(TOGETHER):
                real = builder.icmp_signed("<", LONG(row), count)
                skipped = builder.select(real, builder.mul(stride, LONG(row)), LONG(0))
                starts.append(builder.add(rows, skipped))
            before = builder.block
            loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(LONG)
            totals = [[builder.phi(FLOATS) for _ in range(4)] for _ in range(TOGETHER)]
            line = at(builder.add(weight, builder.mul(step, LONG(4 * COLUMNS))), INTS)
            columns = [builder.load(builder.gep(line, [LONG(i)]), align=4) for i in range(4)]
            for i in range(fetch):
                place = builder.add(ahead, builder.mul(step, LONG(64 * fetch)))
                builder.call(
                    prefetch,
                    [at(builder.add(place, LONG(64 * i)), BYTE), *(INT(n) for n in (0, 2, 1))],
                )
            sums_now = []
            for start, total in zip(starts, totals, strict=True):
                word = builder.load(at(builder.add(start, builder.mul(step, LONG(4))), INT))
                first = builder.insert_element(blank, word, INT(0))
                x = builder.shuffle_vector(first, blank, INTS([0] * 16))
                if half:
                    x = builder.bitcast(x, halves)
                    pairs = [builder.bitcast(w, halves) for w in columns]
                    new = [builder.call(dot, [t, w, x]) for t, w in zip(total, pairs, strict=True)]
                else:
                    x = builder.bitcast(x, FLOATS)
                    single = [builder.bitcast(w, FLOATS) for w in columns]
                    new = [builder.call(fma, [x, w, t]) for t, w in zip(total, single, strict=True)]
                sums_now.append(new)
            following = builder.add(step, LONG(1))
            step.add_incoming(LONG(0), before)
            step.add_incoming(following, loop)
            for total, new in zip(totals, sums_now, strict=True):
                for phi, value in zip(total, new, strict=True):
                    phi.add_incoming(zero, before)
                    phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, steps), loop, end)
            builder.position_at_end(end)
            adds = builder.icmp_signed("!=", more, LONG(0))
            for index, value in enumerate(value for new in sums_now for value in new):
                place = builder.gep(at(sums, FLOATS), [LONG(index)])
                added = builder.fadd(builder.load(place, align=4), value)
                builder.store(builder.select(adds, added, value), place, align=4)
            return ir.Constant(BYTE.as_pointer(), None)

        return types.void(like, *[types.int64] * 8), generate

    return multiply_block


multiply_block, multiply_block_ahead = _multiplier(0), _multiplier(2)
