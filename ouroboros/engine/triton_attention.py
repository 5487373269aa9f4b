"""Attention of a few tree nodes over a long cache, on a GPU.

Such a call has few query rows and many slots, so the slots are split: each program computes the
attention of one key head's packed query heads over one range of slots, and a second kernel combines
the ranges by their log-sum-exps (as flash decoding, Dao et al. 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html). Keys and values are read once, in place;
the tree is an additive mask, or a table for several sequences (`ouroboros.engine.tables`).

Needs Triton, which is part of torch's CUDA builds. TRITON_INTERPRET=1 runs the same code on a CPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch
    triton = None

SLOTS = 64  # slots that a program reads at a time; half as many for wide heads
WIDE_BYTES = 256  # of a key; with wider ones, `SLOTS` would exceed smaller GPUs' shared memory
MOST_ROWS = 64  # packed query rows per program
MOST_PARTS = 64  # most ranges that the slots are split into
HEAD = 6  # entries of a table row before the mask, see `engine.tables`
SEQUENCES = 64  # most sequences of a captured joint call; each may leave one block partly filled
TYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (16, 32, 64, 128, 256)  # of heads


def fits(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Return whether `tree_attention` supports a call: it needs Triton, a GPU, one additive mask or
    table for all heads, head widths that are powers of two, and contiguous rows."""
    width = query.shape[-1]
    return (
        triton is not None
        and query.is_cuda
        and query.dtype in TYPES
        and len(query) == 1
        and mask is not None
        and mask.shape[:2] == (1, 1)
        and (mask.is_floating_point() or mask.dtype == torch.int32)
        and width == value.shape[-1]
        and width in WIDTHS
        and all(part.stride(-1) == 1 for part in (query, key, value, mask))
    )


def block_tokens(heads: int, kv_heads: int) -> int:
    """Return the largest number of tokens in a block of a joint call (see `engine.tables`)."""
    return max(1, MOST_ROWS * kv_heads // heads)


def most_blocks(tokens: int, most: int) -> int:
    """Return how many blocks, of up to `most` tokens, a captured joint call of `tokens` tokens
    has."""
    return min(tokens, tokens // most + SEQUENCES + 1)


def why_no_kernel(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Return why the kernel cannot be used for heads of this width on this device; None if its
    largest block agrees with torch's attention."""
    if triton is None:
        return "Triton is not installed"
    if width not in WIDTHS:
        return f"heads of width {width} are not supported"
    draw = torch.Generator(device).manual_seed(0)
    size = (3, 1, 1, MOST_ROWS, width)
    query, key, value = torch.randn(size, generator=draw, device=device).to(dtype)
    mask = torch.zeros(1, 1, MOST_ROWS, MOST_ROWS, dtype=dtype, device=device)
    try:
        result = tree_attention(query, key, value, mask, width**-0.5).transpose(1, 2)
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double()
    )
    relative = ((result.double() - expected).norm() / expected.norm()).item()
    return None if relative < 2e-2 else f"its relative error is {relative:.2g}"


@torch.library.custom_op("ouroboros::tree_attention", mutates_args=())
def tree_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend with queries [1, heads, n, width] over keys and values [1, kv_heads, slots, width]
    under an additive mask [1, 1, n, slots] or an int32 table [1, 1, n, entries]; return [1, n,
    heads, width]."""
    _, heads, n, width = query.shape
    kv_heads, slots = key.shape[1:3]
    jointly = mask.dtype == torch.int32
    wide = width * query.element_size() > WIDE_BYTES
    at_once = SLOTS // 2 if wide else SLOTS
    group = heads // kv_heads
    packed = group * n
    most = block_tokens(heads, kv_heads)
    rows = max(16, triton.next_power_of_2(group * most if jointly else packed))
    rows = rows if jointly else min(MOST_ROWS, rows)
    blocks = most_blocks(n, most) if jointly else triton.cdiv(packed, rows)
    busy = max(1, n // most) if jointly else blocks  # the other blocks may be empty
    processors = 132
    if query.is_cuda:
        processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    # enough parts to give every multiprocessor work
    wanted = triton.next_power_of_2(triton.cdiv(2 * processors, kv_heads * busy))
    parts = max(1, min(wanted, MOST_PARTS, triton.cdiv(slots, 2 * SLOTS)))
    part = triton.cdiv(triton.cdiv(slots, parts), at_once) * at_once
    out = query.new_empty(1, n, heads, width)
    sums = tops = totals = out
    if parts > 1:
        sums = query.new_empty(parts, kv_heads, packed, width, dtype=torch.float32)
        tops = query.new_empty(parts, kv_heads, packed, dtype=torch.float32)
        totals = torch.empty_like(tops)
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        _attend[(kv_heads, blocks, parts)](
            *(query, key, value, mask, sums, tops, totals, scale, n, slots, part, group, kv_heads),
            *(query.stride(1), query.stride(2), key.stride(1), key.stride(2)),
            *(value.stride(1), value.stride(2), mask.stride(2)),
            WIDTH=width,
            ROWS=rows,
            SLOTS=at_once,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
            WHOLE=parts == 1,
            JOINTLY=jointly,
            HEAD=HEAD,
            num_warps=4,
            num_stages=1 if wide else 2,
        )
        if parts > 1:
            _join[(kv_heads * packed,)](
                *(sums, tops, totals, out, n, group, kv_heads, parts),
                WIDTH=width,
                PARTS=triton.next_power_of_2(parts),
                num_warps=2,
            )
    return out


@tree_attention.register_fake
def _(query, key, value, mask, scale):
    _, heads, n, width = query.shape
    return query.new_empty(1, n, heads, width)


if triton is not None:

    @triton.jit
    def _attend(
        query,
        key,
        value,
        mask,
        sums,
        tops,
        totals,
        scale,
        n,
        slots,
        part,
        group,
        kv_heads,
        query_head,
        query_row,
        key_head,
        key_slot,
        value_head,
        value_slot,
        mask_row,
        WIDTH: tl.constexpr,
        ROWS: tl.constexpr,
        SLOTS: tl.constexpr,
        PRECISION: tl.constexpr,
        WHOLE: tl.constexpr,
        JOINTLY: tl.constexpr,
        HEAD: tl.constexpr,
    ):
        """Attend over one range of slots with a block of one key head's packed rows (row = group
        member x n + node). If there is only one range (`WHOLE`), write the final result, [n, heads,
        width]. With `JOINTLY`, `mask` is a table (see `engine.tables`)."""
        head, block, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        row = block * ROWS + tl.arange(0, ROWS)
        real = row < group * n
        member, node = row // n, row % n
        begin, end, start, base = which * part, slots, node, node
        if JOINTLY:
            row = tl.arange(0, ROWS)
            first = tl.load(mask + block * mask_row + 4)
            count = tl.load(mask + block * mask_row + 5)
            real = row < group * count
            member, node = row // tl.maximum(count, 1), first + row % tl.maximum(count, 1)
            row = member * n + node
            own = mask + first * mask_row
            slab, base = tl.load(own).to(tl.int64), tl.load(own + 2)
            key, value = key + slab * key_slot, value + slab * value_slot
            start = tl.load(mask + node * mask_row + 1, mask=real, other=base)
            begin, end = tl.min(start, 0), base + tl.load(own + 3)
            part = tl.cdiv(tl.cdiv(end - begin, tl.num_programs(2)), SLOTS) * SLOTS
            begin = begin + which * part
            end = tl.where(count > 0, end, 0)
        lane = tl.arange(0, WIDTH)
        at_query = (head * group + member)[:, None] * query_head + node[:, None] * query_row
        queries = tl.load(query + at_query + lane[None, :], mask=real[:, None], other=0.0)
        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        weighted = tl.zeros([ROWS, WIDTH], tl.float32)
        end = tl.minimum(begin + part, end)
        for at in range(begin, end, SLOTS):
            slot = at + tl.arange(0, SLOTS)
            inside = slot < end
            keys = tl.load(
                key + head * key_head + slot[:, None] * key_slot + lane[None, :],
                mask=inside[:, None],
                other=0.0,
            )
            if JOINTLY:
                column = slot - base
                word = tl.load(
                    mask + node[:, None] * mask_row + HEAD + (column >> 5)[None, :],
                    mask=real[:, None] & (inside & (column >= 0))[None, :],
                    other=-1,
                )
                seen = ((word >> (column & 31)[None, :]) & 1) > 0
                bias = tl.where(seen & (slot[None, :] >= start[:, None]), 0.0, -1e30)
            else:
                bias = tl.load(
                    mask + node[:, None] * mask_row + slot[None, :],
                    mask=real[:, None] & inside[None, :],
                    other=0.0,
                ).to(tl.float32)
            scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale + bias
            scores = tl.where(inside[None, :], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - higher[:, None])
            fade = tl.exp(top - higher)
            values = tl.load(
                value + head * value_head + slot[:, None] * value_slot + lane[None, :],
                mask=inside[:, None],
                other=0.0,
            )
            weighted = weighted * fade[:, None] + tl.dot(
                weights.to(values.dtype), values, input_precision=PRECISION
            )
            total = total * fade + tl.sum(weights, 1)
            top = higher
        if WHOLE:
            to = (node * kv_heads * group + head * group + member)[:, None] * WIDTH
            result = (weighted / total[:, None]).to(sums.dtype.element_ty)
            tl.store(sums + to + lane[None, :], result, mask=real[:, None])
        else:
            out = (which * kv_heads + head) * group * n + row
            tl.store(sums + out[:, None] * WIDTH + lane[None, :], weighted, mask=real[:, None])
            tl.store(tops + out, top, mask=real)
            tl.store(totals + out, total, mask=real)

    @triton.jit
    def _join(
        sums, tops, totals, out, n, group, kv_heads, parts, WIDTH: tl.constexpr, PARTS: tl.constexpr
    ):
        """Combine the ranges of one packed row; write the row of the result, [n, heads, width]."""
        which = tl.program_id(0)
        head, row = which // (group * n), which % (group * n)
        part = tl.arange(0, PARTS)
        there = part < parts
        lane = tl.arange(0, WIDTH)
        at = part * kv_heads * group * n + which
        top = tl.load(tops + at, mask=there, other=float("-inf"))
        weights = tl.exp(top - tl.max(top, 0))
        total = tl.sum(weights * tl.load(totals + at, mask=there, other=0.0), 0)
        weighted = tl.load(
            sums + at[:, None] * WIDTH + lane[None, :], mask=there[:, None], other=0.0
        )
        result = tl.sum(weighted * weights[:, None], 0) / total
        to = (row % n) * kv_heads * group + head * group + row // n
        tl.store(out + to * WIDTH + lane, result.to(out.dtype.element_ty))
