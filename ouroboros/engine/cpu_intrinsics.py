"""LLVM code for operations that `ouroboros.engine.cpu_kernels` needs and numba does not offer."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import wraps
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FEATURES: Any = llvmlite.binding.get_host_cpu_features()
LANES = 16 if FEATURES.get("avx512f") else 8  # floats of a vector
COLUMNS = 64  # columns that `multiply_block` keeps in registers
AT_ONCE = 4 if LANES == 16 else 1  # rows that it keeps there
TOGETHER = 4  # rows of the other kernels
BYTE, INT, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOATS, INTS = ir.VectorType(FLOAT, 16), ir.VectorType(INT, 16)
SHORTS = ir.VectorType(ir.IntType(16), 32)
LINE, PLACES = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def can_multiply(bfloat16: bool) -> bool:
    """Return whether this processor has AVX-512, which `multiply_integers` needs, and, with
    `bfloat16`, instructions for bfloat16, without which `multiply_block` converts to float32."""
    return bool(FEATURES.get("avx512bw") and (FEATURES.get("avx512bf16") or not bfloat16))


def _can_tile(kind: str) -> bool:
    """Return whether this processor has AMX for `kind` ("bf16" or "int8") and the system lets this
    process use it, which Linux grants on request (arch_prctl,
    https://docs.kernel.org/arch/x86/xstate.html)."""
    known = FEATURES.get(f"amx-{kind}") and can_multiply(bfloat16=True)
    if not known or platform.system() != "Linux":
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


TILES, INT8_TILES = _can_tile("bf16"), _can_tile("int8")
SPINS, NAP_US = 4000, 10  # checks of a waiting thread, about 200 us, before it sleeps in between
TILE_ROWS, TILE_STEP = 16, 32  # rows and inputs of a tile
INT8_STEP = 64  # inputs of a tile of int8


def generated(emit: Callable[..., None]):
    """Return an intrinsic with int64 arguments and no result. `emit(builder, *arguments)` generates
    its code."""

    @wraps(emit)
    def typed(context, *arguments):
        def generate(_, builder, __, values):
            emit(builder, *values)
            return ir.Constant(BYTE.as_pointer(), None)

        return types.void(*[types.int64] * len(arguments)), generate

    return intrinsic(typed)


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
    return types.voidptr(types.int64), lambda _, builder, __, arguments: _at(
        builder, arguments[0], BYTE
    )


@intrinsic
def next_item(context, counter):
    """Return the number at an address that threads share, and increment it atomically."""
    return types.int64(types.int64), lambda _, builder, __, arguments: builder.atomic_rmw(
        "add", _at(builder, arguments[0], LONG), LONG(1), "monotonic"
    )


@generated
def wait_for_all(builder, arrived, team, sleep):
    """Count this thread's arrival at the address `arrived`, and wait until `team` threads arrived.
    After `SPINS` checks, each check first sleeps NAP_US by the function at the address `sleep`."""
    arrived, kind = _at(builder, arrived, LONG), ir.FunctionType(INT, [INT])
    names = "check", "spin", "sleep", "end"
    before = builder.block
    check, spin, away, end = (builder.append_basic_block(name) for name in names)
    builder.atomic_rmw("add", arrived, LONG(1), "acq_rel")
    builder.branch(check)
    builder.position_at_end(check)
    checks = builder.phi(LONG)
    count = builder.load_atomic(arrived, "acquire", 8)
    builder.cbranch(builder.icmp_signed(">=", count, team), end, spin)
    builder.position_at_end(spin)
    builder.call(_declared(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])
    more = builder.add(checks, LONG(1))
    builder.cbranch(builder.icmp_signed("<", more, LONG(SPINS)), check, away)
    builder.position_at_end(away)
    builder.call(_at(builder, sleep, kind), [INT(NAP_US)])
    builder.branch(check)
    for value, block in ((LONG(0), before), (more, spin), (more, away)):
        checks.add_incoming(value, block)
    builder.position_at_end(end)


@intrinsic
def number_from(context, address):
    """Return the int that the function at an address returns, called without arguments."""

    def generate(_, builder, __, arguments):
        kind = ir.FunctionType(INT, [])
        number = builder.call(_at(builder, arguments[0], kind), [])
        return builder.sext(number, LONG)

    return types.int64(types.int64), generate


def _at(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def _past(builder, start, step, size: int):
    return builder.add(start, builder.mul(step, LONG(size)))


def _rows_from(builder, start, stride, together: int, count) -> list[Any]:
    """Return the addresses of `together` rows; for rows from `count` on, that of the first row."""
    addresses = []
    for row in range(together):
        real = builder.icmp_signed("<", LONG(row), count)
        skipped = builder.select(real, builder.mul(stride, LONG(row)), LONG(0))
        addresses.append(builder.add(start, skipped))
    return addresses


def _prefetch(builder, start, lines: int, level: int) -> None:
    """Prefetch cache lines (64 bytes each) into the cache of a level, 1 or 2."""
    prefetch = _declared(
        builder, "llvm.prefetch.p0", ir.VoidType(), BYTE.as_pointer(), INT, INT, INT
    )
    for line in range(lines):
        place = _at(builder, builder.add(start, LONG(64 * line)), BYTE)
        builder.call(prefetch, [place, INT(0), INT(4 - level), INT(1)])


def _declared(builder, name: str, returned, *parameters):
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(returned, parameters), name)


def _every_lane(builder, value, kind):
    """Return a vector of type `kind` with the value in every lane."""
    blank, first_lane = kind(ir.Undefined), ir.VectorType(INT, kind.count)([0] * kind.count)
    first = builder.insert_element(blank, value, INT(0))
    return builder.shuffle_vector(first, blank, first_lane)


def _repeated(builder, steps, values: list, body: Any) -> list:
    """Generate a loop that replaces `values` by `body(step, values)`, `steps` times (at least
    once); return the last values."""
    before = builder.block
    loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    step, now = builder.phi(LONG), [builder.phi(value.type) for value in values]
    found, following = body(step, now), builder.add(step, LONG(1))
    step.add_incoming(LONG(0), before)
    step.add_incoming(following, loop)
    for phi, first, then in zip(now, values, found, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, end)
    builder.position_at_end(end)
    return found


def _products_added(builder, pairs, sums: list) -> list:
    """Add the product of each pair of vectors to its sum."""
    fma = _declared(builder, f"llvm.fma.v{LANES}f32", LINE, LINE, LINE, LINE)
    return [builder.call(fma, [*pair, own]) for pair, own in zip(pairs, sums, strict=True)]


def _multiplier(fetch: int):
    """Return a `multiply_block` that prefetches `fetch` cache lines per step."""

    @intrinsic
    def multiply_block(context, like, rows, stride, count, weight, sums, steps, more, ahead):
        """Multiply `AT_ONCE` rows by 64 columns of a weight over `steps` inputs (pairs of inputs in
        bfloat16). Write the products to `sums`, [rows, 64] float32; with `more`, add them instead.

        `rows` is the first row's address, `stride` the bytes between rows. If `count` is below
        `AT_ONCE`, the first row takes the place of missing rows. Each step prefetches from `ahead`
        into the L2 cache. `like` is any array of the rows' dtype (bfloat16 as uint16).
        """
        half = like.dtype.bitwidth == 16
        native = half and can_multiply(bfloat16=True)

        def generate(_, builder, __, arguments):
            rows, stride, count, weight, sums, steps, more, ahead = arguments[1:]
            operand = ir.VectorType(_BFloat(), 32) if native else FLOATS
            name = "llvm.x86.avx512bf16.dpbf16ps.512" if native else "llvm.fma.v16f32"
            kinds = [FLOATS, operand, operand] if native else [FLOATS] * 3
            multiply = _declared(builder, name, FLOATS, *kinds)
            starts = _rows_from(builder, rows, stride, AT_ONCE, count)

            def numbers(words):
                """Return the numbers in a vector of words as vectors to multiply."""
                if native or not half:
                    return [builder.bitcast(words, operand)]
                low, high = INTS([16] * 16), INTS([0xFFFF0000] * 16)
                pair = builder.shl(words, low), builder.and_(words, high)
                return [builder.bitcast(own, FLOATS) for own in pair]

            def add(step, totals):
                past = builder.mul(step, LONG(4))
                line = _at(builder, builder.add(weight, builder.mul(past, LONG(COLUMNS))), INTS)
                loaded = [builder.load(builder.gep(line, [LONG(i)]), align=4) for i in range(4)]
                columns = [numbers(words) for words in loaded]
                _prefetch(builder, _past(builder, ahead, step, 64 * fetch), fetch, level=2)
                found = []
                for at, total in enumerate(totals):
                    if at % 4 == 0:
                        own = builder.add(starts[at // 4], past)
                        word = builder.load(_at(builder, own, INT))
                        x = numbers(_every_lane(builder, word, INTS))
                    for one, other in zip(x, columns[at % 4], strict=True):
                        operands = [total, other, one] if native else [one, other, total]
                        total = builder.call(multiply, operands)
                    found.append(total)
                return found

            found = _repeated(builder, steps, [FLOATS([0.0] * 16)] * (4 * AT_ONCE), add)
            adds = builder.icmp_signed("!=", more, LONG(0))
            for index, value in enumerate(found):
                place = builder.gep(_at(builder, sums, FLOATS), [LONG(index)])
                added = builder.fadd(builder.load(place, align=4), value)
                builder.store(builder.select(adds, added, value), place, align=4)
            return ir.Constant(BYTE.as_pointer(), None)

        return types.void(like, *[types.int64] * 8), generate

    return multiply_block


multiply_block, multiply_block_ahead = _multiplier(0), _multiplier(2)


@generated
def multiply_integers(builder, rows, stride, count, weight, sums, steps, scales, row, more):
    """Multiply four rows of 16-bit integers by 64 columns of an int8 weight over `steps` pairs of
    inputs, at most 256. Write the products, times a float32 scale of each row, to `sums`, [4, 64]
    float32; with `more`, add them instead.

    `rows` and `scales` are addresses of the first row and its scale; `stride` and `row` the bytes
    to the next. If `count` is below four, the first row takes the place of missing rows.
    """
    # with AVX512-VNNI, LLVM joins this and the addition in one instruction
    multiply = _declared(builder, "llvm.x86.avx512.pmaddw.d.512", INTS, SHORTS, SHORTS)
    narrow = ir.VectorType(BYTE, 32)
    starts = _rows_from(builder, rows, stride, TOGETHER, count)

    def add(step, totals):
        line = _at(builder, _past(builder, weight, step, 2 * COLUMNS), narrow)
        loaded = [builder.load(builder.gep(line, [LONG(i)]), align=1) for i in range(4)]
        columns, found = [builder.sext(own, SHORTS) for own in loaded], []
        for start in starts:
            pair = builder.load(_at(builder, _past(builder, start, step, 4), INT))
            x = builder.bitcast(_every_lane(builder, pair, INTS), SHORTS)
            found += [builder.call(multiply, [x, w]) for w in columns]
        return [builder.add(*both) for both in zip(totals, found, strict=True)]

    found = _repeated(builder, steps, [INTS([0] * 16)] * (4 * TOGETHER), add)
    adds = builder.icmp_signed("!=", more, LONG(0))
    for at, scale in enumerate(_rows_from(builder, scales, row, TOGETHER, count)):
        every = _every_lane(builder, builder.load(_at(builder, scale, FLOAT), align=4), FLOATS)
        for index in range(4 * at, 4 * at + 4):
            product = builder.fmul(builder.sitofp(found[index], FLOATS), every)
            place = builder.gep(_at(builder, sums, FLOATS), [LONG(index)])
            added = builder.fadd(builder.load(place, align=4), product)
            builder.store(builder.select(adds, added, product), place, align=4)


def _amx(builder, name: str, *operands) -> None:
    """Generate an AMX instruction; the operand after a tile's number is an address."""
    operands = tuple(
        _at(builder, operand, BYTE) if at == 1 and operand.type == LONG else operand
        for at, operand in enumerate(operands)
    )
    kinds = [operand.type for operand in operands]
    builder.call(_declared(builder, f"llvm.x86.{name}", ir.VoidType(), *kinds), operands)


@generated
def set_tiles(builder, config):
    """Configure this thread's AMX tiles as at the address `config`; 0 releases them."""
    some = builder.icmp_signed("!=", config, LONG(0))
    with builder.if_else(some) as (then, otherwise):
        with then:
            _amx(builder, "ldtilecfg", _at(builder, config, BYTE))
        with otherwise:
            _amx(builder, "tilerelease")


@generated
def transpose(builder, source, stride, target, width):
    """Transpose 16 x 16 numbers of 32 bits from the address `source`, whose rows are `stride` bytes
    apart, to `target`, whose rows are `width` bytes apart."""
    starts = _rows_from(builder, source, stride, 16, LONG(16))
    rows = [builder.load(_at(builder, start, INTS), align=4) for start in starts]
    for size in (1, 2, 4, 8):  # exchange blocks of this size off the diagonal
        low = [lane if not lane & size else 16 + lane - size for lane in range(16)]
        high = [lane + size if not lane & size else 16 + lane for lane in range(16)]
        for at in range(16):
            if not at & size:
                pair = rows[at], rows[at + size]
                rows[at] = builder.shuffle_vector(*pair, INTS(low))
                rows[at + size] = builder.shuffle_vector(*pair, INTS(high))
    for row, place in zip(rows, _rows_from(builder, target, width, 16, LONG(16)), strict=True):
        builder.store(row, _at(builder, place, INTS), align=4)


@generated
def interleave(builder, one, two, target):
    """Write pairs of 16-bit numbers to the address `target`: each of the 64 at the address `one`,
    followed by its neighbour at `two`. Each 32 pairs are in the order 0 to 3, 8 to 11, 16 to 19, 24
    to 27, 4 to 7, ...: the unpack instructions work within 128-bit lanes."""
    one, two, target = (_at(builder, place, SHORTS) for place in (one, two, target))
    index = 0
    for half in range(2):
        pair = [builder.load(builder.gep(x, [LONG(half)]), align=2) for x in (one, two)]
        for start in (0, 4):
            lanes = [32 * (i % 2) + 8 * (i // 8) + start + i % 8 // 2 for i in range(32)]
            kind = ir.VectorType(INT, 32)
            mixed = builder.shuffle_vector(*pair, kind(lanes))
            builder.store(mixed, builder.gep(target, [LONG(index)]), align=4)
            index += 1


def _tiler(more: bool):
    """Return an intrinsic that multiplies with AMX; with `more`, it adds to the sums."""

    @generated
    def multiply(builder, rows, stride, weight, sums, row, steps):
        """Multiply rows by 64 columns of a bfloat16 weight, [inputs / 2, 64, 2], over `steps` times
        32 inputs. Write the products to `sums`, [rows, 64] float32.

        `rows` is the address of the first row, `stride` the bytes between rows, `row` those between
        rows of sums. Tiles 0 to 3 hold the sums, 4 the rows, 5 to 7 the weight.
        """

        def add(step, _):
            _amx(builder, "tileloadd64", BYTE(4), _past(builder, rows, step, 64), stride)
            line = _past(builder, weight, step, 64 * COLUMNS)
            for at in range(4):
                own, place = BYTE(5 + at % 3), builder.add(line, LONG(64 * at))
                _amx(builder, "tileloadd64", own, place, LONG(4 * COLUMNS))
                _amx(builder, "tdpbf16ps", BYTE(at), BYTE(4), own)
            return []

        places = [builder.add(sums, LONG(64 * at)) for at in range(4)]
        for at, place in enumerate(places):
            if more:
                _amx(builder, "tileloadd64", BYTE(at), place, row)
            else:
                _amx(builder, "tilezero", BYTE(at))
        _repeated(builder, steps, [], add)
        for at, place in enumerate(places):
            _amx(builder, "tilestored64", BYTE(at), place, row)

    return multiply


multiply_tile, multiply_tile_more = _tiler(False), _tiler(True)


@generated
def multiply_two_tiles(builder, rows, rows_below, stride, weight, sums, sums_below, row, steps):
    """Do `multiply_tile` for two tiles of rows, at the addresses `rows` and `rows_below`; write
    their products to `sums` and `sums_below`. Each tile of the weight is loaded once, and
    prefetched a step ahead.

    Tiles 0 and 1 hold the first rows' sums for 32 columns, 2 and 3 those of the rows below, 4 and
    5 the rows, 6 and 7 the weight.
    """
    for half in range(2):
        for at in range(4):
            _amx(builder, "tilezero", BYTE(at))

        def add(step, _, half=half):
            for at, start in ((4, rows), (5, rows_below)):
                _amx(builder, "tileloadd64", BYTE(at), _past(builder, start, step, 64), stride)
            line = _past(builder, weight, step, 64 * COLUMNS)
            if half == 0:
                _prefetch(builder, builder.add(line, LONG(64 * COLUMNS)), COLUMNS, level=1)
            for at in range(2):
                place = builder.add(line, LONG(128 * half + 64 * at))
                _amx(builder, "tileloadd64", BYTE(6 + at), place, LONG(4 * COLUMNS))
                _amx(builder, "tdpbf16ps", BYTE(at), BYTE(4), BYTE(6 + at))
                _amx(builder, "tdpbf16ps", BYTE(2 + at), BYTE(5), BYTE(6 + at))
            return []

        _repeated(builder, steps, [], add)
        for at in range(4):
            place = builder.add(sums_below if at > 1 else sums, LONG(128 * half + 64 * (at % 2)))
            _amx(builder, "tilestored64", BYTE(at), place, row)


@generated
def multiply_int8_tile(builder, high, low, stride, weight, sums, apart, steps):
    """Multiply rows of 16-bit integers by 64 columns of an int8 weight over `steps` times 64 inputs
    with AMX. Write the products of the upper bytes, at address `high`, to `sums`, [rows, 64] int32,
    and those of the lower bytes, at `low`, `apart` bytes further.

    Tiles 0 to 3 hold the sums for 32 columns, 4 and 5 the rows, 6 and 7 the weight. `stride` is
    the bytes between rows.
    """
    for half in range(2):
        for at in range(4):
            _amx(builder, "tilezero", BYTE(at))

        def add(step, _, half=half):
            for at, rows in ((4, high), (5, low)):
                place = _past(builder, rows, step, INT8_STEP)
                _amx(builder, "tileloadd64", BYTE(at), place, stride)
            line = _past(builder, weight, step, INT8_STEP * COLUMNS)
            line = builder.add(line, LONG(2048 * half))
            for at in range(2):
                place = builder.add(line, LONG(1024 * at))
                _amx(builder, "tileloadd64", BYTE(6 + at), place, LONG(64))
                _amx(builder, "tdpbssd", BYTE(at), BYTE(4), BYTE(6 + at))
                _amx(builder, "tdpbusd", BYTE(2 + at), BYTE(5), BYTE(6 + at))
            return []

        _repeated(builder, steps, [], add)
        for at in range(4):
            place = builder.add(sums, LONG(128 * half + 64 * (at % 2)))
            if at > 1:
                place = builder.add(place, apart)
            _amx(builder, "tilestored64", BYTE(at), place, LONG(4 * COLUMNS))


def _halving() -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """Return the stages that sum the lanes of each of `LANES` vectors, and the order of the sums.

    Each stage replaces two vectors by the sum of two shuffles of them, which halves the lanes per
    sum: lane i is added to lane i + LANES / 2, and so on. Short sums stay within 128 bits.
    """
    stages, orders, length = [], [[at] * LANES for at in range(LANES)], LANES
    while length > 1:
        whole = LANES if length > 4 else 4
        low = [
            vector * LANES + start + lane
            for chunk in range(0, LANES, whole)
            for vector in range(2)
            for start in range(chunk, chunk + whole, length)
            for lane in range(length // 2)
        ]
        stages.append((low, [lane + length // 2 for lane in low]))
        pairs = zip(orders[::2], orders[1::2], strict=True)
        orders, length = [[(a + b)[lane] for lane in low] for a, b in pairs], length // 2
    return stages, orders[0]


STAGES, ORDER = _halving()


def _scorer(together: int):
    """Return an intrinsic for the dot products of `together` queries with several keys."""

    @generated
    def score(builder, queries, stride, count, keys, width, scores, row, steps):
        """Write the dot products of `count` queries with `LANES / together` keys to `scores`.

        `queries`, `keys` and `scores` are addresses of float32. Bytes from one query to the next:
        `stride` in queries, `row` in scores; from one key: `width`. A step is `LANES` columns.
        """
        every = LANES // together
        starts = _rows_from(builder, queries, stride, together, count)
        starts += _rows_from(builder, keys, width, every, LONG(every))

        def add(step, sums):
            skipped = builder.mul(step, LONG(4 * LANES))
            lines = [
                builder.load(_at(builder, builder.add(start, skipped), LINE), align=4)
                for start in starts
            ]
            pairs = [(x, y) for x in lines[:together] for y in lines[together:]]
            return _products_added(builder, pairs, sums)

        found = _repeated(builder, steps, [LINE([0.0] * LANES)] * LANES, add)
        sums = [found[ORDER.index(at)] for at in range(LANES)]
        for low, high in STAGES:
            sums = [
                builder.fadd(
                    builder.shuffle_vector(a, b, PLACES(low)),
                    builder.shuffle_vector(a, b, PLACES(high)),
                )
                for a, b in zip(sums[::2], sums[1::2], strict=True)
            ]
        targets = _rows_from(builder, scores, row, together, count)
        kind = ir.VectorType(INT, every)
        for at, target in enumerate(targets):
            lanes = kind(list(range(at * every, (at + 1) * every)))
            own = builder.shuffle_vector(sums[0], sums[0], lanes)
            place = _at(builder, target, ir.VectorType(FLOAT, every))
            builder.store(own, place, align=4)

    return score


def _weigher(together: int, vectors: int):
    """Return an intrinsic for weighted sums of values, of `together` queries and `vectors` vectors
    of columns."""

    @generated
    def weigh(builder, weights, row, count, values, width, totals, stride, steps):
        """Add `steps` values in order, each times its weight, to the `totals` of `count` queries.

        `weights`, `values` and `totals` are addresses of float32. Bytes from one query to the next:
        `row` in weights, `stride` in totals; from one value to the next: `width`.
        """
        rows = _rows_from(builder, weights, row, together, count)
        places = [
            builder.gep(_at(builder, start, LINE), [LONG(vector)])
            for start in _rows_from(builder, totals, stride, together, count)
            for vector in range(vectors)
        ]

        def add(step, sums):
            line = _at(builder, builder.add(values, builder.mul(step, width)), LINE)
            lines = [
                builder.load(builder.gep(line, [LONG(vector)]), align=4)
                for vector in range(vectors)
            ]
            factors = []
            for start in rows:
                weight = builder.load(builder.gep(_at(builder, start, FLOAT), [step]), align=4)
                factors.append(_every_lane(builder, weight, LINE))
            return _products_added(builder, [(x, y) for x in factors for y in lines], sums)

        before = [builder.load(place, align=4) for place in places]
        for place, total in zip(places, _repeated(builder, steps, before, add), strict=True):
            builder.store(total, place, align=4)

    return weigh


score_tile, score_line = _scorer(TOGETHER), _scorer(1)
weigh_tile, weigh_line = _weigher(TOGETHER, 4), _weigher(TOGETHER, 1)
