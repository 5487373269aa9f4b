"""Exact attention on a GPU: a row's result is bitwise identical whatever the other rows are.

Each program attends with one row's query heads of one key head over one part of the row's
positions: `PART` positions that begin at a multiple of `PART`. A second kernel adds up the parts in
the order of positions. So the order of additions depends on a row's position, not on the number of
rows, on the tree or on the device.

A tree's slots are not in the order of their positions, so a table tells where to read. It is int32,
with a row for each query:

- entry 0: the first slot of the sequence; all slots are counted from it
- entry 1: the row's length, which is the query's position plus 1 (0 for padding)
- entry 2: how many leading positions have the slot of the same number
- entry 3: the first position that is attended to
- entries 4, ...: the slots of the other positions up to the query's (`TAILS` entries per part)
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch
    triton = None

PART, BLOCK = 256, 64  # positions that a program attends to, and those that it reads at a time
HEAD, TAILS = 4, 16  # entries of the table before the slots, and slots per part
WIDEST = 256  # head width


@torch.library.custom_op("ouroboros::exact_attention", mutates_args=())
def exact_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, table: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend with queries [1, heads, n, width] over keys and values [1, kv_heads, slots, width],
    each row to the slots in its row of the `table` [1, 1, n, entries]; return [1, n, heads, width].
    Rows of length 0 (entry 1) give 0."""
    _, heads, n, width = query.shape
    kv_heads, entries = key.shape[1], table.shape[-1]
    group, parts = heads // kv_heads, (entries - HEAD) // TAILS
    query = query.transpose(1, 2).contiguous()
    out = torch.empty_like(query)
    sums = query.new_empty(n, heads, parts, width, dtype=torch.float32)
    tops = query.new_empty(n, heads, parts, dtype=torch.float32)
    totals = torch.empty_like(tops)
    sizes = {"WIDTH": width, "LANES": max(16, triton.next_power_of_2(width)), "PART": PART}
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        _attend[(n, kv_heads, parts)](
            *(query, key, value, table, sums, tops, totals, scale, kv_heads, parts),
            *(key.stride(1) // width, value.stride(1) // width, entries),
            GROUP=group,
            ROWS=max(16, triton.next_power_of_2(group)),
            BLOCK=BLOCK // 2 if width * query.element_size() > 256 else BLOCK,
            HEAD=HEAD,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
            **sizes,
            num_warps=4,
            num_stages=2,
        )
        _join[(n * heads,)](
            *(sums, tops, totals, table, out, heads, parts, entries), **sizes, num_warps=1
        )
    return out


@exact_attention.register_fake
def _(query, key, value, table, scale):
    _, heads, n, width = query.shape
    return query.new_empty(1, n, heads, width)


if triton is not None:
    # the same code for any number of parts and for caches of any capacity
    @triton.jit(do_not_specialize=["parts", "key_slots", "value_slots", "entries"])
    def _attend(
        query,
        key,
        value,
        table,
        sums,
        tops,
        totals,
        scale,
        kv_heads,
        parts,
        key_slots,
        value_slots,
        entries,
        WIDTH: tl.constexpr,
        LANES: tl.constexpr,
        PART: tl.constexpr,
        GROUP: tl.constexpr,
        ROWS: tl.constexpr,
        BLOCK: tl.constexpr,
        HEAD: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        """Attend with one row's query heads of one key head over one part of its positions. Write
        the part's weighted values to `sums`, the largest score to `tops` and the sum of weights to
        `totals`."""
        row, part = tl.program_id(0), tl.program_id(2)
        head = tl.program_id(1).to(tl.int64)
        own = table + row * entries
        slab, length, straight = tl.load(own).to(tl.int64), tl.load(own + 1), tl.load(own + 2)
        first = tl.load(own + 3)
        begin = tl.maximum(part * PART, first // BLOCK * BLOCK)
        end = tl.minimum(part * PART + PART, length)
        if begin >= end:
            return
        member, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
        real, inside = member < GROUP, lane < WIDTH
        at_query = (row * kv_heads + head) * GROUP + member
        queries = tl.load(
            query + at_query[:, None] * WIDTH + lane[None, :],
            mask=real[:, None] & inside[None, :],
            other=0.0,
        )
        top = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        weighted = tl.zeros([ROWS, LANES], tl.float32)
        for at in range(begin, end, BLOCK):
            position = at + tl.arange(0, BLOCK)
            seen = (position >= first) & (position < length)
            tail = tl.load(
                own + HEAD + position - straight, mask=seen & (position >= straight), other=0
            )
            slot = slab + tl.where(position < straight, position, tail)
            wanted = seen[:, None] & inside[None, :]
            at_slot = slot[:, None] * WIDTH + lane[None, :]
            keys = tl.load(key + head * key_slots * WIDTH + at_slot, mask=wanted, other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            weights, fade = tl.exp(scores - higher[:, None]), tl.exp(top - higher)
            values = tl.load(value + head * value_slots * WIDTH + at_slot, mask=wanted, other=0.0)
            weighted = weighted * fade[:, None] + tl.dot(
                weights.to(values.dtype), values, input_precision=PRECISION
            )
            total = total * fade + tl.sum(weights, 1)
            top = higher
        to = at_query * parts + part
        tl.store(
            sums + to[:, None] * WIDTH + lane[None, :],
            weighted,
            mask=real[:, None] & inside[None, :],
        )
        tl.store(tops + to, top, mask=real)
        tl.store(totals + to, total, mask=real)

    @triton.jit(do_not_specialize=["parts", "entries"])
    def _join(
        sums,
        tops,
        totals,
        table,
        out,
        heads,
        parts,
        entries,
        WIDTH: tl.constexpr,
        LANES: tl.constexpr,
        PART: tl.constexpr,
    ):
        """Add up the parts of one row and head in the order of positions; write the result to
        `out`."""
        which = tl.program_id(0).to(tl.int64)
        own = table + which // heads * entries
        begin, end = tl.load(own + 3) // PART, tl.cdiv(tl.load(own + 1), PART)
        lane = tl.arange(0, LANES)
        at = which * parts
        top = tl.full([], -1e30, tl.float32)
        for part in range(begin, end):
            top = tl.maximum(top, tl.load(tops + at + part))
        total = tl.zeros([], tl.float32)
        weighted = tl.zeros([LANES], tl.float32)
        for part in range(begin, end):
            weight = tl.exp(tl.load(tops + at + part) - top)
            total += weight * tl.load(totals + at + part)
            weighted += weight * tl.load(
                sums + (at + part) * WIDTH + lane, mask=lane < WIDTH, other=0.0
            )
        result = weighted / tl.where(end > begin, total, 1.0)
        tl.store(out + which * WIDTH + lane, result.to(out.dtype.element_ty), mask=lane < WIDTH)
