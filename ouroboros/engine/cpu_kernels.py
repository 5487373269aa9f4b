"""CPU kernels: a matrix product with packed weights, and a whole decoder in one call.

Each computes every row independently and in a fixed order, so a row's result is bitwise identical
in any call. Kernels take addresses and are called through ctypes, which costs one or two
microseconds. They run on the threads of torch's own pool, because a second pool would compete with
torch's waiting threads.

Callers size the buffers; there are no bounds checks. bfloat16 is passed as 16 bits, rounded to
nearest even wherever transformers' modules round.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numba import types

from ouroboros.core.jit import cache_folder, cached_in, compile_now
from ouroboros.engine import cpu_intrinsics as ops
from ouroboros.engine.cpu_intrinsics import (
    AT_ONCE,
    COLUMNS,
    INT8_STEP,
    INT8_TILES,
    LANES,
    TILE_ROWS,
    TILE_STEP,
    TILES,
    TOGETHER,
    can_multiply,
)

HERE = Path(__file__)
CACHE = cache_folder([HERE.with_name("cpu_intrinsics.py"), HERE])
BLOCK = 16  # rows attend to whole blocks of positions, which begin at multiples of 16
CHUNK, QUERIES = 32, 128  # keys converted to float32 at a time, and queries that use them
DEPTH = 1024 if LANES == 16 else 128  # inputs per partial sum; half for at most DEPTH inputs
LEAST = np.float32(-50)  # lowest exponent of a weight: products of smaller ones are subnormal
# numbers, which the processor handles 100 times slower
PIECE = 2048  # columns of one work item of `gate`
GROUP = 256  # inputs that are rounded to 16-bit integers with one scale, for int8 weights
LAYER_FIELDS, PART_FIELDS = 17, 6  # columns of the layer and sequence tables of `decode`
FAST: dict[str, Any] = {  # sums may be reordered and fused; NaN and infinity stay valid
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}


@numba.njit(forceinline=True, **FAST)
def _get(array, at):
    if array.itemsize == 2:  # bfloat16, which is the upper half of float32
        return ops.float_of(np.uint32(np.uint16(array[at])) << np.uint32(16))
    return np.float32(array[at])


@numba.njit(forceinline=True, **FAST)
def _rounded_bits(value):
    bits = ops.bits_of(np.float32(value))
    return bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))


@numba.njit(forceinline=True, **FAST)
def _round(array, value):
    """Return `value` rounded to the dtype of `array`, as float32."""
    if array.itemsize == 2:
        return ops.float_of(_rounded_bits(value) & np.uint32(0xFFFF0000))
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
    power = ops.float_of(np.uint32((np.int32(whole) + np.int32(127)) << np.int32(23)))
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
def _turn(row, cos, sin, out):
    """Apply the rotary embedding to one head of one token; write the result to `out`."""
    half = len(row) // 2
    for at in range(half):
        x, y = _get(row, at), _get(row, at + half)
        low = _round(row, x * _get(cos, at)) - _round(row, y * _get(sin, at))
        high = _round(row, y * _get(cos, at + half)) + _round(row, x * _get(sin, at + half))
        _put(out, at, _round(row, low))
        _put(out, at + half, _round(row, high))


@numba.njit(**FAST)
def _convert(source, target):
    """Copy keys or values, [count, width], to the first columns of `target` as float32."""
    width = source.shape[1]
    if width == target.shape[1]:
        every, to = source.reshape(-1), target.reshape(-1)
        for at in range(len(every)):
            to[at] = _get(every, at)
    else:
        for row in range(len(source)):
            for column in range(width):
                target[row, column] = _get(source[row], column)


@numba.njit(**FAST)
def _score(queries, keys, width, scores):
    """Write the dot products of `queries` [n, columns] with keys to `scores` [n, keys]. `keys` is
    the address of the first key, `width` the bytes from one key to the next."""
    stride, row, steps = queries.strides[0], scores.strides[0], queries.shape[1] // LANES
    for at in range(0, len(queries), TOGETHER):
        own, to = queries.ctypes.data + at * stride, scores.ctypes.data + at * row
        left = len(queries) - at
        if left > 1:
            for key in range(0, scores.shape[1], LANES // TOGETHER):
                start = keys + key * width
                ops.score_tile(own, stride, left, start, width, to + 4 * key, row, steps)
        else:
            for key in range(0, scores.shape[1], LANES):
                ops.score_line(own, stride, 1, keys + key * width, width, to + 4 * key, row, steps)


@numba.njit(**FAST)
def _weigh(weights, values, width, totals):
    """Add values in turn, each times its weight in `weights` [n, values], to `totals` [n, columns].
    `values` is the address of the first value, `width` the bytes from one value to the next."""
    row, stride, steps = weights.strides[0], totals.strides[0], weights.shape[1]
    end = 4 * totals.shape[1]
    in_tiles = end // (16 * LANES) * 16 * LANES
    for at in range(0, len(totals), TOGETHER):
        own, to = weights.ctypes.data + at * row, totals.ctypes.data + at * stride
        left = len(totals) - at
        for past in range(0, in_tiles, 16 * LANES):
            ops.weigh_tile(own, row, left, values + past, width, to + past, stride, steps)
        for past in range(in_tiles, end, 4 * LANES):
            ops.weigh_line(own, row, left, values + past, width, to + past, stride, steps)


@numba.njit(forceinline=True, **FAST)
def _ordered(bits):
    """Convert the bits of a float32 to an integer in the same order, or back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@numba.njit(**FAST)
def _softmax(scores, skip, count):
    """Replace scores by exp(score - maximum), but by 0 before `skip` and from `count` on; return
    their sum."""
    scores[:skip] = -np.inf
    scores[count:] = -np.inf
    highest = np.int32(-0x80000000)
    for at in range(len(scores)):
        highest = max(highest, _ordered(np.int32(ops.bits_of(scores[at]))))
    top = ops.float_of(np.uint32(_ordered(highest)))
    for at in range(len(scores)):
        scores[at] = _exp(max(scores[at] - top, LEAST))
    scores[:skip] = 0
    scores[count:] = 0
    total = np.float32(0)
    for at in range(len(scores)):
        total += scores[at]
    return total


@numba.njit(**FAST)
def _zeros(rows, width):
    """Return float32 zeros, [rows, `width` rounded up to whole vectors], aligned to 64 bytes."""
    columns = (width + LANES - 1) // LANES * LANES
    memory = np.zeros(rows * columns + 16, np.float32)
    skipped = -(memory.ctypes.data // 4) % 16
    return memory[skipped : skipped + rows * columns].reshape(rows, columns)


@numba.njit(**FAST)
def _together(n, group):
    """Return how many of `n` rows a work item of `_attend` has.

    At most QUERIES queries, `group` for each row, and BLOCK rows, which share the slots before the
    first of them. Four to 16 rows are halved, so that threads get equal shares."""
    half = (n + 1) // 2 if n >= TOGETHER else n
    return max(1, min(half, BLOCK, QUERIES // group))


@numba.njit(**FAST)
def _items(n, heads, kv_heads):
    """Return the number of work items of `_attend` for `n` rows."""
    together = _together(n, heads // kv_heads)
    return (n + together - 1) // together * kv_heads


@numba.njit(**FAST)
def _nothing(*arguments):
    """Do nothing: for processors without AMX or AVX-512, whose compiler lacks its instructions."""


@numba.njit(**FAST)
def _tile_configs(rows, alike):
    """Return two AMX configurations, [2, 64]: of whole tiles, and of `rows` rows in the first
    `alike` tiles, which hold sums and rows."""
    configs = np.zeros((2, 64), np.uint8)
    configs[:, 0] = 1  # palette
    configs[:, 16:32:2] = 64  # bytes of a tile's row
    configs[:, 48:56] = TILE_ROWS
    configs[1, 48 : 48 + alike] = rows
    return configs


@numba.njit(**FAST)
def _score_tiles(keys, queries, block, scores, row):
    """Write the dot products of `queries` [n, width] with `keys` [count, width] to the address
    `scores`, whose rows are `row` bytes apart, with AMX: 64 keys at a time. `block`, at least
    [width / 2, 64] uint32, is scratch memory. The tiles must be configured, for 16 rows if n is
    larger."""
    (count, width), stride, line = keys.shape, keys.strides[0], np.int64(4 * COLUMNS)
    last = np.zeros((TILE_ROWS, width), keys.dtype)
    for start in range(0, count, COLUMNS):
        for at in range(start, min(start + COLUMNS, count), TILE_ROWS):
            source, past = keys.ctypes.data + at * stride, stride
            if at + TILE_ROWS > count:
                last[: count - at] = keys[at:]
                source, past = last.ctypes.data, last.strides[0]
            target = block.ctypes.data + 4 * (at - start)
            for part in range(0, width // 2, TILE_ROWS):
                ops.transpose(source + 4 * part, past, target + part * line, line)
        for query in range(0, len(queries), TILE_ROWS):
            ops.multiply_tile(
                *(queries.ctypes.data + query * 2 * width, 2 * width, block.ctypes.data),
                *(scores + query * row + 4 * start, row, width // TILE_STEP),
            )


@numba.njit(**FAST)
def _weigh_tiles(weights, row, n, values, slots, pairs, sums):
    """Add the rows `slots` of `values`, times their `weights` (the address of [n, slots] bfloat16,
    whose rows are `row` bytes apart, zeros up to a multiple of 32 slots), to `sums` [blocks of
    columns, n, 64], with AMX. `pairs`, at least [32, 64] uint32, is scratch memory. The tiles must
    be configured, for 16 rows if n is larger."""
    most, line, nothing = 2 * TILE_STEP, np.int64(4 * COLUMNS), np.zeros(COLUMNS, values.dtype)
    zeros = nothing.ctypes.data
    for start in range(0, len(slots), most):
        count = min(most, len(slots) - start)
        steps = (count + TILE_STEP - 1) // TILE_STEP
        for block in range(len(sums)):
            address, stride = values.ctypes.data + 2 * block * COLUMNS, values.strides[0]
            for pair in range((count + 1) // 2):
                at = start + 2 * pair
                second = address + slots[at + 1] * stride if 2 * pair + 1 < count else zeros
                ops.interleave(address + slots[at] * stride, second, pairs[pair].ctypes.data)
            pairs[(count + 1) // 2 : steps * TILE_STEP // 2] = 0
            for query in range(0, n, TILE_ROWS):
                ops.multiply_tile_more(
                    *(weights + query * row + 2 * start, row, pairs.ctypes.data),
                    *(sums[block, query:].ctypes.data, line, steps),
                )


@numba.njit(**FAST)
def _attend_by_tiles(queries, keys, values, first, lengths, straight, tails, scale, out):
    """Do `_attend` for one key head with AMX: `queries` and `out` are [n, group, width], keys and
    values [slots, width].

    All rows are scored against all slots; the scores of a row with tails are then moved into the
    order of its positions. Rows share values up to the first tail, rows without tails all of them;
    the remaining values of a row with tails are gathered. Sums are in the order of positions, in
    blocks that begin at multiples of 32.
    """
    n, group, width = queries.shape
    most = n * group  # queries, rounded up if they need several tiles
    if most > TILE_ROWS:
        most = (most + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    begin, end, shared = first.min() // TILE_STEP * TILE_STEP, 0, lengths.max() + TILE_STEP
    last = lengths.max()
    for r in range(n):
        if straight[r] < lengths[r]:
            shared = min(shared, straight[r])
            last = max(last, tails[r, lengths[r] - straight[r] - 1] + 1)
        else:
            end = max(end, lengths[r])
    shared = max(begin, shared // TILE_STEP * TILE_STEP)  # all rows attend to the slots before it
    end = max(end, min(shared, lengths.max()))
    columns = (last - begin + COLUMNS - 1) // COLUMNS * COLUMNS
    scores, weights = np.empty((most, columns), np.float32), np.empty((most, columns), keys.dtype)
    packed, totals = np.zeros((most, width), keys.dtype), np.empty(most, np.float32)
    sums = np.zeros((values.shape[1] // COLUMNS, most, COLUMNS), np.float32)
    scratch = np.empty((max(width // 2, TILE_STEP), COLUMNS), np.uint32)
    slots, row = np.arange(begin, begin + columns), 4 * columns
    together, alone = _tile_configs(min(most, TILE_ROWS), 5)[1], _tile_configs(group, 5)[1]
    for query in range(n * group):
        for at in range(width):
            _put(packed[query], at, queries[query // group, query % group, at])
    ops.set_tiles(together.ctypes.data)
    _score_tiles(keys[begin:last], packed, scratch, scores.ctypes.data, row)
    for query in range(n * group):
        r, own, to = query // group, scores[query], weights[query]
        for at in range(max(straight[r], begin), lengths[r]):  # in place, since tails ascend
            own[at - begin] = own[tails[r, at - straight[r]] - begin]
        low = first[r] // BLOCK * BLOCK - begin
        high = (lengths[r] - begin + BLOCK - 1) // BLOCK * BLOCK
        tile = own[low:high]
        for at in range(len(tile)):
            tile[at] *= scale
        totals[query] = _softmax(tile, first[r] - begin - low, lengths[r] - begin - low)
        own[:low], own[high:] = 0, 0
        for at in range(columns):
            _put(to, at, own[at])
    address, half = weights.ctypes.data, weights.strides[0]
    ops.set_tiles(together.ctypes.data)
    _weigh_tiles(address, half, most, values, slots[: min(shared, end) - begin], scratch, sums)
    if end > shared:  # of rows without tails
        later = np.zeros((most, columns), keys.dtype)
        for query in range(n * group):
            if straight[query // group] == lengths[query // group]:
                later[query] = weights[query]
        past = later.ctypes.data + 2 * (shared - begin)
        _weigh_tiles(past, half, most, values, slots[shared - begin : end - begin], scratch, sums)
    ops.set_tiles(alone.ctypes.data)
    for r in range(n):
        if straight[r] < lengths[r]:
            own = slots[shared - begin : lengths[r] - begin].copy()
            for at in range(max(0, straight[r] - shared), len(own)):
                own[at] = tails[r, at + shared - straight[r]]
            past = address + r * group * half + 2 * (shared - begin)
            part = sums[:, r * group : (r + 1) * group]
            _weigh_tiles(past, half, group, values, own, scratch, part)
    ops.set_tiles(0)
    for query in range(n * group):
        target, total = out[query // group, query % group], totals[query]
        for part in range(len(sums)):
            own, to = sums[part, query], target[part * COLUMNS :]
            for four in range(0, COLUMNS, 4):  # see `interleave`
                place = four // 32 * 32 + four % 16 * 2 + four % 32 // 16 * 4
                for at in range(4):
                    _put(to, place + at, own[four + at] / total)


_if_attending = _attend_by_tiles if TILES else _nothing


@numba.njit(**FAST)
def _attend(item, kv_heads, queries, keys, values, first, lengths, straight, tails, scale, out):
    """Attend with the `queries`, [n, heads, width], of one work item: some rows, and the query
    heads of one key head; write to `out`. Scores are multiplied by `scale`.

    The slots that all of these rows attend to, without tails, are converted once for all of them;
    a row's remaining slots are gathered for this row. Both are summed by the same code, in the
    order of positions. See `exact.Reach` for `lengths`, `straight`, `tails` and `first`.
    """
    group, head = queries.shape[1] // kv_heads, item % kv_heads
    together = _together(len(queries), group)
    row = item // kv_heads * together
    queries, out = queries[row : row + together], out[row : row + together]
    n = len(queries)
    first, lengths = first[row : row + n], lengths[row : row + n]
    straight, tails = straight[row : row + n], tails[row : row + n]
    fits = queries.shape[2] % TILE_STEP == 0 and values.shape[2] % COLUMNS == 0
    if TILES and keys.itemsize == 2 and fits and group <= TILE_ROWS:
        own = queries[:, head * group : (head + 1) * group]
        to = out[:, head * group : (head + 1) * group]
        _if_attending(own, keys[head], values[head], first, lengths, straight, tails, scale, to)
        return
    low, ends = first // BLOCK * BLOCK, (lengths + BLOCK - 1) // BLOCK * BLOCK
    begin, stop = low.min(), straight.min() // BLOCK * BLOCK
    alone = np.maximum(low, stop)
    room = max(CHUNK, (ends - alone).max())
    scores = np.empty((n * group, ends.max() - begin), np.float32)
    grouped, total = _zeros(n * group, queries.shape[2]), _zeros(n * group, values.shape[2])
    for r in range(n):
        for g in range(group):
            for at in range(queries.shape[2]):
                grouped[r * group + g, at] = scale * queries[r, head * group + g, at]
    sums = np.empty(n * group, np.float32)
    for weighting in range(2):
        source = values if weighting else keys
        block = _zeros(room, source.shape[2])
        for at in range(begin, stop, CHUNK):
            count = min(CHUNK, stop - at)
            lines, tile = source[head, at : at + count], scores[:, at - begin : at - begin + count]
            start, width = lines.ctypes.data, lines.strides[0]
            if source.itemsize == 2 or lines.shape[1] < block.shape[1]:
                _convert(lines, block[:count])
                start, width = block.ctypes.data, block.strides[0]
            if weighting:
                _weigh(tile, start, width, total)
            else:
                _score(grouped, start, width, tile)
        for r in range(n):
            at, count = alone[r], lengths[r] - alone[r]
            if not count:
                continue
            for place in range(count):
                slot = at + place
                if slot >= straight[r]:
                    slot = tails[r, slot - straight[r]]
                _convert(source[head, slot : slot + 1], block[place : place + 1])
            block[count : ends[r] - at] = 0
            start, width = block.ctypes.data, block.strides[0]
            own = slice(r * group, r * group + group)
            tile = scores[own, at - begin : ends[r] - begin]
            if weighting:
                _weigh(tile, start, width, total[own])
            else:
                _score(grouped[own], start, width, tile)
        if not weighting:
            for q in range(n * group):
                r = q // group
                scores[q, : low[r] - begin] = 0
                tile = scores[q, low[r] - begin : ends[r] - begin]
                sums[q] = _softmax(tile, first[r] - low[r], lengths[r] - low[r])
    for q in range(n * group):
        target, own = out[q // group, head * group + q % group], total[q]
        for column in range(len(target)):
            _put(target, column, own[column] / sums[q])


@numba.njit(**FAST)
def _write_products(sums, bias, column, out):
    """Write the `sums` of 64 columns, [n, 64] float32, plus `bias` if not empty, to the columns of
    `out` from `column` on."""
    left = min(COLUMNS, out.shape[1] - column)
    for row in range(len(out)):
        target, own = out[row, column : column + left], sums[row]
        if len(bias):
            for at in range(left):
                _put(target, at, own[at] + _get(bias, column + at))
        else:
            for at in range(left):
                _put(target, at, own[at])


@numba.njit(**FAST)
def _by_tiles(counter, width, rows, weight, bias, out):
    """Do `_multiply` with AMX: up to 32 rows at a time."""
    n, stride, most = len(out), 2 * width, 2 * TILE_ROWS
    steps, line = width // TILE_STEP, np.int64(4 * COLUMNS)
    configs = _tile_configs((n - 1) % TILE_ROWS + 1, 5)
    if n % most > TILE_ROWS:  # of the last two tiles, the first is whole
        configs[1] = configs[0]
        for tile in (2, 3, 5):
            configs[1, 48 + tile] = (n - 1) % TILE_ROWS + 1
    sums = np.empty((n, COLUMNS), np.float32)
    item = ops.next_item(counter)
    ops.set_tiles(configs[int(n <= most)].ctypes.data)
    while item * COLUMNS < out.shape[1]:
        block = weight + item * COLUMNS * stride
        for row in range(0, n, most):
            if n > most:
                ops.set_tiles(configs[int(row + most > n)].ctypes.data)
            own, to = rows + row * stride, sums[row:].ctypes.data
            if n - row > TILE_ROWS:
                rows_below, sums_below = own + TILE_ROWS * stride, to + TILE_ROWS * line
                ops.multiply_two_tiles(own, rows_below, stride, block, to, sums_below, line, steps)
            else:
                ops.multiply_tile(own, stride, block, to, line, steps)
        _write_products(sums, bias, item * COLUMNS, out)
        item = ops.next_item(counter)
    ops.set_tiles(0)


_if_tiles = _by_tiles if TILES else _nothing


@numba.njit(**FAST)
def _to_integers(row, integers, scales):
    """Round `row` to 16-bit integers times a scale for each GROUP of inputs."""
    for group in range(len(scales)):
        piece = slice(group * GROUP, min((group + 1) * GROUP, len(row)))
        source, own, highest = row[piece], integers[piece], np.int32(0)
        for at in range(len(source)):
            highest = max(highest, np.int32(ops.bits_of(_get(source, at)) & np.uint32(0x7FFFFFFF)))
        scale = max(ops.float_of(np.uint32(highest)) / np.float32(32767), np.float32(1e-37))
        scales[group] = scale
        for at in range(len(source)):
            own[at] = np.int16(np.floor(_get(source, at) / scale + np.float32(0.5)))


@numba.njit(**FAST)
def _write_scaled(sums, scales, bias, column, out):
    """Do `_write_products` with sums that are first multiplied by the `scales` of the columns."""
    for row in range(len(out)):
        own = sums[row]
        for at in range(min(COLUMNS, out.shape[1] - column)):
            own[at] *= scales[column + at]
    _write_products(sums, bias, column, out)


@numba.njit(**FAST)
def _int8_by_tiles(counter, integers, scale_of, weight, scales, bias, out):
    """Do `_by_integers` with AMX: 16 rows at a time, their upper and lower bytes apart."""
    n, width = integers.shape
    tiles = (n + TILE_ROWS - 1) // TILE_ROWS
    configs = _tile_configs(n - (tiles - 1) * TILE_ROWS, 6)
    split = np.empty((2, n, width), np.uint8)
    for row in range(n):
        for at in range(width):
            split[0, row, at] = np.uint8(integers[row, at] >> 8)
            split[1, row, at] = np.uint8(integers[row, at] & 255)
    parts, sums = np.empty((2, n, COLUMNS), np.int32), np.empty((n, COLUMNS), np.float32)
    item = ops.next_item(counter)
    ops.set_tiles(configs[1].ctypes.data)
    while item * COLUMNS < out.shape[1]:
        sums[:] = 0
        for group in range(scale_of.shape[1]):
            start = group * GROUP
            for tile in range(tiles):
                row = tile * TILE_ROWS
                if tiles > 1:
                    ops.set_tiles(configs[int(tile == tiles - 1)].ctypes.data)
                ops.multiply_int8_tile(
                    *(split[0, row, start:].ctypes.data, split[1, row, start:].ctypes.data, width),
                    *(weight + (item * width + start) * COLUMNS, parts[0, row:].ctypes.data),
                    *(4 * n * COLUMNS, min(GROUP, width - start) // INT8_STEP),
                )
            for row in range(n):
                own, scale = sums[row], scale_of[row, group]
                high, low = parts[0, row], parts[1, row]
                for at in range(COLUMNS):
                    own[at] += np.float32((high[at] << np.int32(8)) + low[at]) * scale
        _write_scaled(sums, scales, bias, item * COLUMNS, out)
        item = ops.next_item(counter)
    ops.set_tiles(0)


_if_int8_tiles = _int8_by_tiles if INT8_TILES else _nothing


@numba.njit(**FAST)
def _by_integers(counter, width, rows, weight, scales, bias, out):
    """Do `_multiply` with an int8 weight whose columns have `scales`. The rows are rounded to
    16-bit integers, whose products are summed exactly within each GROUP of inputs."""
    (n, columns), groups = out.shape, (width + GROUP - 1) // GROUP
    source = numba.carray(ops.pointer(rows), (n, width), out.dtype)
    integers = np.empty((n, width), np.int16)
    scale_of = np.empty((n, groups), np.float32)
    for row in range(n):
        _to_integers(source[row], integers[row], scale_of[row])
    if INT8_TILES and width % INT8_STEP == 0:
        _if_int8_tiles(counter, integers, scale_of, weight, scales, bias, out)
        return
    sums = np.empty(((n + TOGETHER - 1) // TOGETHER * TOGETHER, COLUMNS), np.float32)
    item = ops.next_item(counter)
    while item * COLUMNS < columns:
        for row in range(0, n, TOGETHER):
            for group in range(groups):
                start = group * GROUP
                ops.multiply_integers(
                    *(integers[row, start:].ctypes.data, 2 * width, n - row),
                    *(weight + (item * width + start) * COLUMNS, sums[row:].ctypes.data),
                    min(GROUP, width - start) // 2,
                    *(scale_of[row, group:].ctypes.data, 4 * groups, group),
                )
        _write_scaled(sums, scales, bias, item * COLUMNS, out)
        item = ops.next_item(counter)


_if_integers = _by_integers if can_multiply(bfloat16=False) else _nothing


@numba.njit(**FAST)
def _vector(address, size, dtype):
    """Return the array [size] at an address; an empty one for address 0."""
    return numba.carray(ops.pointer(address), (size if address else 0,), dtype)


@numba.njit(**FAST)
def _multiply(counter, width, rows, product, out):
    """Multiply the rows at address `rows`, [n, width], by a packed weight (see `prepack.Packed`),
    add a bias, and write the result to `out`, [n, columns]. Threads take work items of 64 columns
    from `counter`. `product` has the addresses of the weight, of the bias, and of the scales of an
    int8 weight's columns (0: none).

    Without AMX, each block of inputs is summed separately, then added to the total. With more than
    `AT_ONCE` rows, the next block of weights is prefetched during the first ones.
    """
    weight, bias = product[0], _vector(product[1], out.shape[1], out.dtype)
    scales = _vector(product[2], out.shape[1], np.float32)
    if len(scales):
        _if_integers(counter, width, rows, weight, scales, bias, out)
        return
    if TILES and out.itemsize == 2 and width % TILE_STEP == 0:
        _if_tiles(counter, width, rows, weight, bias, out)
        return
    n, columns, size = len(out), out.shape[1], out.itemsize
    items, depth = (columns + COLUMNS - 1) // COLUMNS, DEPTH if width > DEPTH else DEPTH // 2
    sums = np.empty(((n + AT_ONCE - 1) // AT_ONCE * AT_ONCE, COLUMNS), np.float32)
    totals, stride = sums.ctypes.data, width * size
    item = ops.next_item(counter)
    while item < items:
        following = ops.next_item(counter)
        block = weight + item * COLUMNS * stride
        for start in range(0, width, depth):
            steps = min(depth, width - start) * size // 4
            ahead = block + steps * 4 * COLUMNS
            if start + depth >= width:
                ahead = weight + min(following, items - 1) * COLUMNS * stride
            for row in range(0, n, AT_ONCE):
                own, total = rows + row * stride + start * size, totals + row * COLUMNS * 4
                if n <= AT_ONCE or row >= 2 * AT_ONCE:
                    ops.multiply_block(out, own, stride, n - row, block, total, steps, start, 0)
                else:
                    ahead += row // AT_ONCE * steps * 2 * COLUMNS
                    ops.multiply_block_ahead(
                        out, own, stride, n - row, block, total, steps, start, ahead
                    )
            block += steps * 4 * COLUMNS
        _write_products(sums, bias, item * COLUMNS, out)
        item = following


@numba.njit(**FAST)
def _norm_rows(counter, rows, residual, addend, weight, out, eps):
    """For each row index in `rows`: add that row of `addend`, unless it is empty, to the residual
    in place, and write the sum's RMSNorm to `out`, whose rows are in the order of `rows`. Threads
    take row numbers from `counter`."""
    item = ops.next_item(counter)
    while item < len(rows):
        own = residual[rows[item]]
        if len(addend):
            more = addend[rows[item]]  # indexed here, or the loop is not vectorised
            for at in range(len(own)):
                _put(own, at, _get(own, at) + _get(more, at))
        _norm(own, weight, out[item], eps)
        item = ops.next_item(counter)


@numba.njit(**FAST)
def _rotate_row(qkv, cos, sin, q_norm, k_norm, eps, keys, values, slot, queries):
    """Apply QK-norm, if any, and rotary embedding to one token's heads in `qkv`. Write its keys and
    values to a cache slot, and its queries to `queries`."""
    heads, kv_heads = len(queries), len(keys)
    for head in range(heads):
        q = qkv[head]
        if len(q_norm):
            _norm(q, q_norm, q, eps)
        _turn(q, cos, sin, queries[head])
    for head in range(kv_heads):
        k = qkv[heads + head]
        if len(k_norm):
            _norm(k, k_norm, k, eps)
        _turn(k, cos, sin, keys[head, slot])
        values[head, slot] = qkv[heads + kv_heads + head]


@numba.njit(**FAST)
def _wait(team, sleep, counter):
    """Wait until all threads of a team have arrived here; return the address of the next counter.
    Each is two integers: the next work item, and how many threads have no more work."""
    if team > 1:
        ops.wait_for_all(counter + 8, team, sleep)
    return counter + 16


@numba.njit(**FAST)
def _gate_rows(counter, both, out):
    """Set `out` [n, width] to SiLU(gate) * up; `both` is [n, 2, width], gate and up. Threads take
    work items of `PIECE` columns of a row from `counter`."""
    n, width = out.shape
    pieces, item = (width + PIECE - 1) // PIECE, ops.next_item(counter)
    while item < n * pieces:
        row, start = item // pieces, item % pieces * PIECE
        piece = slice(start, min(start + PIECE, width))
        inputs, factors, own = both[row, 0, piece], both[row, 1, piece], out[row, piece]
        for at in range(len(own)):
            x = _get(inputs, at)
            silu = _round(own, x / (np.float32(1) + _exp(-x)))
            _put(own, at, silu * _get(factors, at))
        item = ops.next_item(counter)


def _pool():
    """Return OpenMP's function that runs a parallel region on torch's threads (GNU's or Intel's),
    and the addresses of those that count the threads of a region and sleep.
    None and zeros without OpenMP."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_global_deps.so")
    try:
        names = "GOMP_parallel", "omp_get_num_threads", "usleep"
        enter, count, sleep = (getattr(ctypes.CDLL(library), name) for name in names)
    except (OSError, AttributeError):
        return None, 0, 0
    enter.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
    enter.restype = None
    return enter, *(ctypes.cast(one, ctypes.c_void_p).value for one in (count, sleep))


POOL, TEAM, SLEEP = _pool()


class Kernel:
    """A compiled kernel. Call it with the number of work items, then the integers and addresses
    that it takes (see `Kernels`)."""

    def __init__(self, function) -> None:
        signature = types.void(types.CPointer(types.int64))
        with cached_in(CACHE) as options:
            compiled: Any = numba.cfunc(signature, **options, **FAST)(function)
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

    - `multiply`(n, width, columns, rows, weight, bias, scales, out): a linear layer with packed
      weights; `scales` are those of the columns of an int8 weight, float32.
    - `decode`: the whole model, as called by `Fused`.
    """

    multiply: Kernel
    decode: Kernel


@cache
def kernels(dtype: torch.dtype) -> Kernels:
    """Return the kernels for float32 or bfloat16, compiled now or loaded from the cache."""
    return compile_now(lambda: _compile(dtype), CACHE, "the CPU kernels")


def _compile(dtype: torch.dtype) -> Kernels:
    kind = np.uint16 if dtype == torch.bfloat16 else np.float32

    def multiply(a):
        block, out = numba.carray(a, (9,)), numba.carray(ops.pointer(a[9]), (a[2], a[4]), kind)
        _multiply(block.ctypes.data, a[3], a[5], block[6:9], out)

    def decode(a):
        n, width, heads, kv_heads, head_width, inner = a[2], a[3], a[4], a[5], a[6], a[7]
        eps, scale, size = ops.float_of(np.uint32(a[8])), ops.float_of(np.uint32(a[9])), a[10]
        layers = numba.carray(ops.pointer(a[11]), (a[12], LAYER_FIELDS), np.int64)
        parts = numba.carray(ops.pointer(a[13]), (a[14], PART_FIELDS), np.int64)
        team, counter, sleep = ops.number_from(a[15]) if a[15] else 1, a[16], a[17]
        ids, positions = _vector(a[18], n, np.int64), _vector(a[19], n, np.int64)
        embeddings = numba.carray(ops.pointer(a[20]), (a[21], width), kind)
        cos = numba.carray(ops.pointer(a[22]), (a[24], head_width), kind)
        sin = numba.carray(ops.pointer(a[23]), (a[24], head_width), kind)
        kept, last_norm = _vector(a[25], a[26], np.int64), _vector(a[27], width, kind)
        head = numba.carray(a, (31,))[28:]
        logits = numba.carray(ops.pointer(a[31]), (a[26], a[32]), kind)
        residual = numba.carray(ops.pointer(a[33]), (n, width), kind)
        normed = numba.carray(ops.pointer(a[34]), (n, width), kind)
        qkv = numba.carray(ops.pointer(a[35]), (n, (heads + 2 * kv_heads) * head_width), kind)
        queries = numba.carray(ops.pointer(a[36]), (n, heads, head_width), np.float32)
        attended = numba.carray(ops.pointer(a[37]), (n, heads, head_width), kind)
        addend = numba.carray(ops.pointer(a[38]), (n, width), kind)
        both = numba.carray(ops.pointer(a[39]), (n, 2 * inner), kind)
        gated = numba.carray(ops.pointer(a[40]), (n, inner), kind)
        lengths, straight = _vector(a[41], n, np.int64), _vector(a[42], n, np.int64)
        tails = numba.carray(ops.pointer(a[43]), (n, a[44]), np.int64)
        first = numba.carray(ops.pointer(a[45]), (2, n), np.int64)
        heads_of_row, every = qkv.reshape(n, heads + 2 * kv_heads, head_width), np.arange(n)
        row = ops.next_item(counter)
        while row < n:
            residual[row] = embeddings[ids[row]]
            row = ops.next_item(counter)
        for index in range(len(layers)):
            own = layers[index]
            norm_before, norm_after = _vector(own[0], width, kind), _vector(own[1], width, kind)
            q_norm, k_norm = _vector(own[2], head_width, kind), _vector(own[3], head_width, kind)
            counter = _wait(team, sleep, counter)
            more = addend if index else addend[:0]
            _norm_rows(counter, every, residual, more, norm_before, normed, eps)
            counter = _wait(team, sleep, counter)
            _multiply(counter, width, normed.ctypes.data, own[5:8], qkv)
            counter = _wait(team, sleep, counter)
            row, at = ops.next_item(counter), 0
            while row < n:
                while row >= parts[at, 1]:
                    at += 1
                part = parts[at]
                shape = (kv_heads, part[3], head_width)
                past = index * kv_heads * part[3] * head_width * size
                keys = numba.carray(ops.pointer(part[4] + past), shape, kind)
                values = numba.carray(ops.pointer(part[5] + past), shape, kind)
                turn = positions[row]
                _rotate_row(
                    *(heads_of_row[row], cos[turn], sin[turn], q_norm, k_norm, eps),
                    *(keys, values, part[2] + row - part[0], queries[row]),
                )
                row = ops.next_item(counter)
            counter = _wait(team, sleep, counter)
            item, at, before = ops.next_item(counter), 0, 0
            while at < len(parts):
                part = parts[at]
                own_rows = slice(part[0], part[1])
                items = _items(part[1] - part[0], heads, kv_heads)
                if item >= before + items:
                    at, before = at + 1, before + items
                    continue
                shape = (kv_heads, part[3], head_width)
                past = index * kv_heads * part[3] * head_width * size
                _attend(
                    item - before,
                    kv_heads,
                    queries[own_rows],
                    numba.carray(ops.pointer(part[4] + past), shape, kind),
                    numba.carray(ops.pointer(part[5] + past), shape, kind),
                    *(first[own[4], own_rows], lengths[own_rows], straight[own_rows]),
                    *(tails[own_rows], scale, attended[own_rows]),
                )
                item = ops.next_item(counter)
            counter = _wait(team, sleep, counter)
            source = attended.ctypes.data
            _multiply(counter, heads * head_width, source, own[8:11], addend)
            counter = _wait(team, sleep, counter)
            _norm_rows(counter, every, residual, addend, norm_after, normed, eps)
            counter = _wait(team, sleep, counter)
            _multiply(counter, width, normed.ctypes.data, own[11:14], both)
            counter = _wait(team, sleep, counter)
            _gate_rows(counter, both.reshape(n, 2, inner), gated)
            counter = _wait(team, sleep, counter)
            _multiply(counter, inner, gated.ctypes.data, own[14:17], addend)
        counter = _wait(team, sleep, counter)
        _norm_rows(counter, kept, residual, addend, last_norm, normed, eps)
        counter = _wait(team, sleep, counter)
        _multiply(counter, width, normed.ctypes.data, head, logits)

    return Kernels(Kernel(multiply), Kernel(decode))
