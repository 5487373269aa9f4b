"""Exact calls on a CPU: a token's logits have the same bits in every call that computes them.

Rounding depends on the order of sums, and libraries choose that order by the shape of a call: a
tree of 16 nodes rounds differently from 16 single steps. Here the order depends on a token's
position alone:

- Linear layers use weights in oneDNN's layout, for which a row's product has the same bits in any
  number of rows. A single row is doubled where the library would sum it in another order.
- Attention reduces keys in the order of positions, in blocks of eight that begin at multiples of
  eight. A tree's slots are not in the order of positions, so a node's ancestors are gathered.
- Norms, rotations and activations already work row by row.

So trees of any shape, prompts fed in any pieces and standard decoding give bit-equal logits, in
float32 and bfloat16. `make_exact` refuses models that it cannot make exact; `check_exact` refuses
any other operator by name and compares a random tree with single steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ouroboros.engine.attention import packed_attention
from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.eager import Eager
from ouroboros.engine.joint import register
from ouroboros.engine.masks import Layout, Masks
from ouroboros.engine.prepack import PackedWeights, prepack_linears
from ouroboros.tree import TokenTree

NAME = "ouroboros_exact"
BLOCK = 8  # keys that are reduced together; blocks begin at multiples of it
CHUNK = 64  # keys converted at a time, then used for all rows
MOST_ROWS = 128  # rows of one pass of the attention kernel, which bounds its memory
FAST: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}  # no NaN, inf rules
LANES = 64  # most elements that torch computes together: two vectors of bfloat16
GRAIN, SERIAL = 32768, 16384  # elements per thread, and elements that one thread computes
TEXT, NODES, DEPTH = 14, 12, 4  # tokens, nodes and depth of the check
CANNOT = ("softcap", "s_aux", "position_bias")  # attention arguments that the kernel lacks


class Reach(NamedTuple):
    """The slots that each fed token attends to, in the order of positions; one row per token.

    Row r attends to `lengths[r]` slots: first the slots `0 ... straight[r] - 1`, each at its own
    position, then `tails[r, 0], tails[r, 1], ...`. Of these it skips the first `first[0, r]`, or
    `first[1, r]` in layers with a sliding window.
    """

    lengths: np.ndarray
    straight: np.ndarray
    tails: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, layout: Layout, window: int | None) -> Reach:
        """Return the slots that the fed tokens of a layout attend to."""
        before, held, start = len(layout.missing), layout.held, layout.base + len(layout.missing)
        lengths = layout.positions()[held:] + 1
        first = np.zeros((2, len(lengths)), dtype=np.int64)
        first[1] = np.maximum(0, lengths - (window or lengths))
        if layout.tree.is_chain:
            return cls(lengths, lengths, np.zeros((len(lengths), 1), dtype=np.int64), first)
        depths, ancestors = layout.tree.depths(), layout.tree.ancestors()
        chain = int(np.cumprod(depths == np.arange(len(depths))).sum())  # nodes at their positions
        straight = start + ancestors[held:, :chain].sum(1)
        rows, columns = np.nonzero(ancestors[held:, chain:])
        counts = np.bincount(rows, minlength=len(straight))
        tails = np.zeros((before + len(straight), max(1, counts.max())), dtype=np.int64)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        tails[before + rows, place] = start + chain + columns
        return cls(lengths, np.concatenate([lengths[:before], straight]), tails, first)


class _Call(threading.local):
    """The exact call in progress in this thread, read by attention and activations."""

    reach: Reach | None = None
    info: ModelInfo


current = _Call()


class Exact(Eager):
    """Makes exact calls on a model changed by `make_exact`. Raises `ValueError` if weights have
    changed since they were packed."""

    packed: PackedWeights

    def run(
        self, known: int, missing: list[int], tree: TokenTree, *, held: int = 0
    ) -> torch.Tensor:
        self.cache.reserve(known + len(missing) + len(tree))
        return self.call(Layout(known, missing, tree, held))

    def call(self, layout: Layout, token: torch.Tensor | None = None) -> torch.Tensor:
        with self._exact(self.joint_mask(layout)):
            return super().call(layout, token)

    def call_jointly(self, parts: Sequence[tuple[SlotCache, Layout]]) -> list[torch.Tensor]:
        with self._exact(self.joint_mask(parts[0][1])):
            return super().call_jointly(parts)

    def masks(self, layout: Layout) -> Masks:
        return None

    def joint_mask(self, layout: Layout) -> Reach:
        return Reach.of(layout, self.info.sliding_window)

    @contextmanager
    def _exact(self, reach: Reach) -> Iterator[None]:
        """Make the model's calls within this context exact."""
        if self.packed.stale:
            raise ValueError("the weights have changed: call prepack() on the CachedModel")
        current.reach, current.info = reach, self.info
        numba.set_num_threads(min(torch.get_num_threads(), os.cpu_count() or 1))
        try:
            yield
        finally:
            current.reach = None


def exact_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | Reach | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attend with [1, heads, n, width] queries over [1, kv_heads, slots, width] keys and values;
    return [1, n, heads, width]. In joint calls the mask is the sequence's `Reach`. Calls from
    outside the engine go to `packed_attention`."""
    reach = attention_mask if isinstance(attention_mask, Reach) else current.reach
    if reach is None:
        assert not isinstance(attention_mask, Reach)
        return packed_attention(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    for name in CANNOT:
        if kwargs.get(name) is not None:
            raise ValueError(f"exact attention has no {name}: load the model without exact=True")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = (query[0].contiguous().float() * scale).numpy()
    heads, rows, _ = queries.shape
    out = np.empty((rows, heads, value.shape[-1]), dtype=np.float32)
    keys, values = _numpy(key[0]), _numpy(value[0])
    first = reach.first[int(_is_sliding(module, current.info))]
    for at in range(0, rows, MOST_ROWS):
        part = slice(at, at + MOST_ROWS)
        _attend(
            np.ascontiguousarray(queries[:, part]),
            keys,
            values,
            first[part],
            reach.lengths[part],
            reach.straight[part],
            reach.tails[part],
            out[part],
        )
    return torch.from_numpy(out).to(query.dtype)[None], None


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a contiguous view of keys or values, [heads, slots, width], over all allocated slots;
    bfloat16 as int16, since NumPy has no bfloat16."""
    heads, _, width = tensor.shape
    if not tensor.is_contiguous() and tensor.stride()[1:] == (width, 1):
        tensor = tensor.as_strided((heads, tensor.stride(0) // width, width), tensor.stride())
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _is_sliding(module: nn.Module, info: ModelInfo) -> bool:
    """Return whether a layer attends within a sliding window."""
    if info.sliding_window is None or info.layer_types is None:
        return info.sliding_window is not None
    index: Any = module.layer_idx
    return info.layer_types[index] == "sliding_attention"


def _exact_mask(*args, **kwargs) -> torch.Tensor | None:
    """Return None in exact calls, which use a `Reach`, else the mask for `sdpa`."""
    return None if current.reach is not None else sdpa_mask(*args, **kwargs)


register(NAME, exact_attention, _exact_mask)


class ExactActivation(nn.Module):
    """Mixin for activations: an element's bits do not depend on the number of rows.

    torch computes elementwise functions in vectors and the remainder of each thread's share by
    scalar code, which rounds differently. So rows are padded to whole vectors, and the tensor is
    split where a thread's share would end within a vector.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if current.reach is None:
            return super().forward(input)
        width, threads = input.shape[-1], torch.get_num_threads()
        padded = nn.functional.pad(input, (0, -width % LANES)) if width % LANES else input
        size = padded.numel()
        if size > SERIAL and any(size % (t * LANES) for t in (threads, -(-size // GRAIN))):
            pieces = [
                super(ExactActivation, self).forward(x) for x in padded.flatten().split(SERIAL)
            ]
            return torch.cat(pieces).view_as(padded)[..., :width]
        return super().forward(padded)[..., :width]


class ExactRotation(nn.Module):
    """Mixin for rotary embeddings: computes up to 64 positions at a time, padded to 64 unless the
    angles of one position fill whole vectors."""

    def forward(self, x, position_ids, *args, **kwargs):
        if current.reach is None:
            return super().forward(x, position_ids, *args, **kwargs)
        count, angles = position_ids.shape[-1], getattr(self, "inv_freq", None)
        whole = angles is not None and len(angles) % LANES == 0
        padded = position_ids if whole else nn.functional.pad(position_ids, (0, -count % LANES))
        pieces = [
            super(ExactRotation, self).forward(x, part, *args, **kwargs)
            for part in padded.split(LANES, dim=-1)
        ]
        if len(pieces) == 1 and whole:
            return pieces[0]
        if isinstance(pieces[0], torch.Tensor):
            return torch.cat(pieces, dim=1)[:, :count]
        return tuple(torch.cat(parts, dim=1)[:, :count] for parts in zip(*pieces, strict=True))


def make_exact(model: PreTrainedModel, info: ModelInfo) -> PackedWeights:
    """Prepare a model for exact calls: pack its linear layers, replace its attention, and wrap its
    activations and rotations. Return the packed weights.

    Raises `ValueError` with the reason if this is impossible.
    """
    name = type(model).__name__
    if info.device.type != "cpu" or info.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"exact calls are made on a CPU in float32 or bfloat16, not on {info.device.type} in "
            f"{info.dtype}: choose another dtype or leave exact=False"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"the attention of {name} cannot be replaced, so its calls cannot be exact: leave "
            "exact=False"
        )
    packed = prepack_linears(model, every=True)
    if not packed.layers:
        raise ValueError(
            "exact calls need a second copy of the weights, which exceeds half of the free memory "
            "(or torch has no oneDNN here): leave exact=False"
        )
    model.set_attn_implementation(NAME)
    for module in model.modules():
        for mixin, matches in ((ExactActivation, _is_activation), (ExactRotation, _is_rotation)):
            if matches(module) and not isinstance(module, mixin):
                kind = type(module)
                module.__class__ = type(f"Exact{kind.__name__}", (mixin, kind), {})
    return packed


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ in ("torch.nn.modules.activation", "transformers.activations")


def _is_rotation(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RotaryEmbedding")


class _Operators(TorchDispatchMode):
    """Records modules that use operators whose rounding depends on the number of rows."""

    SUMS = ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "matmul", "linear", "convolution")
    CURVES = (
        *("exp", "exp2", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "silu", "gelu", "mish"),
        *("softplus", "_softmax", "cos", "sin", "polar"),
    )

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.inside: list[nn.Module] = []
        self.found: dict[str, str] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        operator = func._schema.name.split("::")[-1]
        sums = operator in self.SUMS or "scaled_dot" in operator or "grouped_mm" in operator
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        safe = any(isinstance(m, ExactActivation | ExactRotation) for m in self.inside)
        curved = operator in self.CURVES and not safe
        if curved or (sums and tensors[-2].shape[-1] > 1):  # a rotation's product has one term
            self.found[self.names[self.inside[-1]]] = operator
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the calls within this context."""
        enter = [
            module.register_forward_pre_hook(lambda module, _: self.inside.append(module))
            for module in self.names
        ]
        leave = [
            module.register_forward_hook(lambda *_: (self.inside.pop(), None)[1])
            for module in self.names
        ]
        try:
            with self:
                yield
        finally:
            for hook in (*enter, *leave):
                hook.remove()


def check_exact(engine: Exact) -> None:
    """Check that a random tree and single steps give the same bits; overwrites the first slots.

    Raises `ValueError` naming the layers that are not exact, or the first difference.
    """
    info, name = engine.info, type(engine.model).__name__
    draw = np.random.default_rng(0)
    length = max(1, min(TEXT, info.max_len - DEPTH - 1))
    text = [int(token) for token in draw.integers(0, info.vocab_size, length)]
    tokens, parents, depths = [text[-1]], [-1], [0]
    while len(tokens) < NODES:
        parent = int(draw.integers(0, len(tokens)))
        if depths[parent] < min(DEPTH, info.max_len - length):
            tokens.append(int(draw.integers(0, info.vocab_size)))
            parents.append(parent)
            depths.append(depths[parent] + 1)
    tree = TokenTree(tuple(tokens), tuple(parents))
    try:
        operators = _Operators(engine.model)
        with torch.no_grad(), operators.watching():
            engine.run(0, [], TokenTree.chain(text[0], ()))
        if operators.found:
            where, what = next(iter(operators.found.items()))
            raise ValueError(
                f"{name} cannot be exact: {where or name + ' itself'} computes {what} (and "
                f"{len(operators.found) - 1} more modules such operators), whose rounding depends "
                "on the number of rows: leave exact=False"
            )
        engine.cache.set_length(0)
        with torch.inference_mode():
            scored = engine.run(0, text[:-1], tree).clone()
            for at, token in enumerate(text[:-1]):  # now the prompt token by token
                engine.cache.set_length(at)
                engine.run(at, [], TokenTree.chain(token, ()))
            for node in sorted(range(len(tree)), key=tree.path_to):  # parents stay in their slots
                at = length - 1 + depths[node]
                engine.cache.set_length(at)
                single = engine.run(at, [], TokenTree.chain(tree.tokens[node], ()))
                if not torch.equal(single[0], scored[node]):
                    error = (single[0] - scored[node]).abs().max().item()
                    raise ValueError(
                        f"{name} is not exact: the logits after node {node} of a tree differ from "
                        f"those of single steps by up to {error:.2g}: leave exact=False"
                    )
    finally:
        engine.cache.set_length(0)
        engine.forwards = 0


@numba.njit(cache=True, **FAST)
def _copy(source, head, first, slots, target, bits):
    """Copy keys or values into `target` as float32: those in `slots` or, if `slots` is empty,
    consecutive ones from slot `first` on. `bits` is the memory of `target` as integers."""
    for row in range(len(target)):
        slot = slots[row] if len(slots) else first + row
        if source.itemsize == 2:  # bfloat16, which is the upper half of float32
            for column in range(source.shape[2]):
                bits[row, column] = np.uint32(np.uint16(source[head, slot, column])) << 16
        else:
            for column in range(source.shape[2]):
                target[row, column] = source[head, slot, column]


@numba.njit(forceinline=True, **FAST)
def _multiply(query, keys, scores):
    """Set `scores` to the products of a query with eight keys."""
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
    """Add eight weighted values to `total`."""
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    w4, w5, w6, w7 = weights[4], weights[5], weights[6], weights[7]
    v0, v1, v2, v3 = values[0], values[1], values[2], values[3]
    v4, v5, v6, v7 = values[4], values[5], values[6], values[7]
    for column in range(len(total)):
        x = total[column] + w0 * v0[column] + w1 * v1[column] + w2 * v2[column]
        x += w3 * v3[column] + w4 * v4[column]
        total[column] = x + w5 * v5[column] + w6 * v6[column] + w7 * v7[column]


@numba.njit(cache=True, **FAST)
def _softmax(scores, skip, count, exponent, power):
    """Replace scores by exp(score - maximum), and by 0 before `skip` and from `count` on; return
    the sum. Uses Cephes' expf, which the compiler can vectorise; `power` is the memory of
    `exponent` as float32."""
    scores[:skip] = -np.inf
    scores[count:] = -np.inf
    top = scores.max()
    for at in range(len(scores)):
        x = max(scores[at] - top, np.float32(-87))
        whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        f = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
        y = np.float32(1.9875691500e-4) * f + np.float32(1.3981999507e-3)
        y = y * f + np.float32(8.3334519073e-3)
        y = y * f + np.float32(4.1665795894e-2)
        y = y * f + np.float32(1.6666665459e-1)
        y = y * f + np.float32(5.0000001201e-1)
        scores[at] = y * f * f + f + np.float32(1)
        exponent[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    for at in range(len(scores)):
        scores[at] *= power[at]
    scores[:skip] = 0
    scores[count:] = 0
    total = np.float32(0)
    for at in range(len(scores)):
        total += scores[at]
    return total


@numba.njit(cache=True, parallel=True, **FAST)
def _attend(queries, keys, values, first, lengths, straight, tails, out):
    """Write attention of scaled `queries` [heads, n, width] to `out` [n, heads, value width].

    A row's keys have two parts: full blocks of its straight slots, shared with other rows, and the
    remaining slots, gathered per row. Both use the same loop, so that sums round the same way.
    """
    heads, n, _ = queries.shape
    kv_heads, group = len(keys), heads // len(keys)
    full = straight // BLOCK * BLOCK
    ends = (lengths + BLOCK - 1) // BLOCK * BLOCK
    shared = np.arange(first.min() // CHUNK * CHUNK, full.max(), CHUNK)
    room = max(CHUNK, (ends - full).max())
    for kv_head in numba.prange(kv_heads):
        scores = np.empty((group * n, ends.max() + CHUNK), np.float32)
        exponent = np.empty(ends.max(), np.int32)
        total = np.zeros((group * n, values.shape[2]), np.float32)
        slots = np.empty(room, np.int64)
        sums = np.empty(group * n, np.float32)
        for weighting in range(2):
            source = values if weighting else keys
            block = np.zeros((room, source.shape[2]), np.float32)
            bits = block.view(np.uint32)
            for item in range(len(shared) + n):
                row, rows, at, count = item - len(shared), 1, 0, 0
                if row < 0:
                    row, rows, at = 0, n, shared[item]
                    count = min(CHUNK, full.max() - at)
                    _copy(source, kv_head, at, slots[:0], block[:count], bits)
                else:
                    at, count = full[row], lengths[row] - full[row]
                    for place in range(count):
                        slots[place] = at + place
                        if at + place >= straight[row]:
                            slots[place] = tails[row, at + place - straight[row]]
                    _copy(source, kv_head, 0, slots, block[:count], bits)
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
                                _multiply(queries[kv_head * group + g, r], eight, weights)
            if not weighting:
                for r in range(n):
                    low = first[r] // BLOCK * BLOCK
                    for g in range(group):
                        seen = scores[g * n + r, low : ends[r]]
                        sums[g * n + r] = _softmax(
                            seen,
                            first[r] - low,
                            lengths[r] - low,
                            exponent,
                            exponent.view(np.float32),
                        )
        for r in range(n):
            for g in range(group):
                out[r, kv_head * group + g] = total[g * n + r] / sums[g * n + r]
