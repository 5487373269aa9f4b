"""Exact calls on a CPU: a token's logits are bitwise identical in every call that computes them.

Rounding depends on the order of additions, and libraries choose that order by the shape of a call:
a tree of 16 nodes rounds differently from 16 single steps. Here the order depends on a token's
position alone:

- Linear layers use weights in oneDNN's layout, with which a row's result does not depend on the
  number of rows in the call, if there are at least four. Fewer rows are padded to four.
- Attention computes each score alone and adds up values in the order of their positions. A tree's
  slots are not in this order, so the slots of a node's ancestors are gathered.
- Norms already work row by row; activations and rotary embeddings do so after padding.

So trees of any shape, prompts fed in chunks of any size and standard decoding give bitwise
identical logits, in float32 and bfloat16. `make_exact` refuses models that it cannot make exact;
`check_exact` refuses all other inexact operators and compares a random tree with single steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ouroboros.engine.attention import packed_attention
from ouroboros.engine.cache import ModelInfo, SlotCache
from ouroboros.engine.cpu_kernels import kernels
from ouroboros.engine.eager import Eager
from ouroboros.engine.joint import register
from ouroboros.engine.masks import Layout, Masks
from ouroboros.engine.prepack import PackedWeights, prepack_linears
from ouroboros.tree import TokenTree

NAME = "ouroboros_exact"
MANY = 1 << 16  # multiplications above which the attention kernel uses several threads
ELEMENTS = 64  # most elements that torch computes together: two vectors of bfloat16
GRAIN, SERIAL = 32768, 16384  # elements per thread in torch; elements that one thread computes
TEXT, NODES, DEPTH = 14, 12, 4  # of `check_exact`: tokens of the text, nodes and depth of the tree
PIECE = 37  # tokens per call when `check_exact` feeds a text longer than `TEXT`
CANNOT = ("softcap", "s_aux", "position_bias")  # attention arguments that the kernel lacks


@dataclass(frozen=True, eq=False)
class Reach:
    """The slots that each fed token attends to, sorted by position; one row per token.

    Row r lists `lengths[r]` slots: first 0 to `straight[r]` - 1, then `tails[r, 0]`, `tails[r, 1]`,
    ... Attention starts at entry `first[0, r]` of the list, or `first[1, r]` in sliding-window
    layers. All arrays are int64.
    """

    lengths: np.ndarray
    straight: np.ndarray
    tails: np.ndarray
    first: np.ndarray

    @cached_property
    def total(self) -> int:
        """The sum of the rows' lengths."""
        return int(self.lengths.sum())

    @cached_property
    def addresses(self) -> tuple[int, int, int, int]:
        """The addresses of `lengths`, `straight`, `tails` and `first`, all int64."""
        arrays = (self.lengths, self.straight, self.tails, self.first)
        assert all(own.dtype == np.int64 and own.flags.c_contiguous for own in arrays)
        return tuple(own.__array_interface__["data"][0] for own in arrays)  # type: ignore[return-value]

    @classmethod
    def of(cls, layout: Layout, window: int | None) -> Reach:
        """Return the slots that a layout's fed tokens attend to. `window`: the sliding window, or
        None."""
        before, held, start = len(layout.missing), layout.held, layout.base + len(layout.missing)
        lengths = layout.positions()[held:] + 1
        first = np.zeros((2, len(lengths)), dtype=np.int64)
        first[1] = np.maximum(0, lengths - (window or lengths))
        if layout.tree.is_chain:
            return cls(lengths, lengths, np.zeros((len(lengths), 1), dtype=np.int64), first)
        depths, ancestors = layout.tree.depths(), layout.tree.ancestors(held)
        chain = int(np.cumprod(depths == np.arange(len(depths))).sum())  # nodes at slot = position
        straight = start + ancestors[:, :chain].sum(1)
        rows, columns = np.nonzero(ancestors[:, chain:])
        counts = np.bincount(rows, minlength=len(straight))
        tails = np.zeros((before + len(straight), max(1, counts.max())), dtype=np.int64)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        tails[before + rows, place] = start + chain + columns
        return cls(lengths, np.concatenate([lengths[:before], straight]), tails, first)


class _Call(threading.local):
    """The exact call in progress in this thread, for attention and activations; `reach` is None
    outside of exact calls, and `info` describes the model."""

    reach: Reach | None = None
    info: ModelInfo


current = _Call()


class Exact(Eager):
    """The engine of a model prepared by `make_exact`. Calls raise `ValueError` if weights have
    changed since they were packed."""

    packed: PackedWeights
    drops_rows = False  # attention computes all rows of the `Reach`
    feeds_apart = False

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
        """Context manager: while it is active, attention reads the slots in `reach`, in a fixed
        order of additions. Raises `ValueError` if the weights have changed."""
        if self.packed.stale:
            raise ValueError("the weights have changed: call prepack() on the CachedModel")
        current.reach, current.info = reach, self.info
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
    scaling: float | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attend with [1, heads, n, width] queries over [1, kv_heads, slots, width] keys and values;
    return [1, n, heads, width]. In joint calls the mask is the sequence's `Reach`. Outside of exact
    calls this is `packed_attention`. Raises `ValueError` for the arguments in `CANNOT`."""
    reach = attention_mask if isinstance(attention_mask, Reach) else current.reach
    if reach is None:
        assert not isinstance(attention_mask, Reach)
        return packed_attention(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    for name in CANNOT:
        if kwargs.get(name) is not None:
            raise ValueError(f"exact attention has no {name}: load the model without exact=True")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = query[0].transpose(0, 1).float().contiguous() * scale
    sliding = is_sliding(module.layer_idx, current.info)  # type: ignore[arg-type]
    return attend(queries, key[0], value[0], reach, sliding)[None], None


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, reach: Reach, sliding: bool
) -> torch.Tensor:
    """Attend with scaled float32 queries [n, heads, width] over keys and values [kv_heads, slots,
    width], each row to the slots in `reach`; return [n, heads, value width]. `sliding`: whether the
    layer has a sliding window."""
    (n, heads, width), (kv_heads, _, out_width) = queries.shape, values.shape
    keys, values = _rows_together(keys), _rows_together(values)
    capacities = keys.stride(0) // width, values.stride(0) // out_width
    out = keys.new_empty(n, heads, out_width)
    lengths, straight, tails, first = reach.addresses
    kernels(keys.dtype).attend(
        n * kv_heads,
        *(n, heads, kv_heads, width, out_width, *capacities),
        *(queries.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr()),
        *(lengths, straight, tails, reach.tails.shape[1], first + 8 * n * sliding),
        threads=torch.get_num_threads() if reach.total * heads * width > MANY else 1,
    )
    return out


def _rows_together(tensor: torch.Tensor) -> torch.Tensor:
    """Return keys or values with each head's slots contiguous in memory; copy only if needed."""
    return tensor if tensor.stride()[1:] == (tensor.shape[2], 1) else tensor.contiguous()


def is_sliding(layer: int, info: ModelInfo) -> bool:
    """Return whether a layer attends within a sliding window."""
    if info.sliding_window is None or info.layer_types is None:
        return info.sliding_window is not None
    return info.layer_types[layer] == "sliding_attention"


def _exact_mask(*args, **kwargs) -> torch.Tensor | None:
    """Return transformers' mask for `sdpa`; None in exact calls, which use a `Reach`."""
    return None if current.reach is not None else sdpa_mask(*args, **kwargs)


register(NAME, exact_attention, _exact_mask)


class ExactActivation(nn.Module):
    """Mixin for activations: makes an element's result independent of the number of rows.

    torch computes elementwise functions with SIMD vectors, but the last elements of each thread's
    range with scalar code, which rounds differently. So rows are padded to whole vectors, and the
    tensor is split if a thread's range would end within a vector.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if current.reach is None:
            return super().forward(input)
        width, threads = input.shape[-1], torch.get_num_threads()
        padded = nn.functional.pad(input, (0, -width % ELEMENTS)) if width % ELEMENTS else input
        size = padded.numel()
        if size > SERIAL and any(size % (t * ELEMENTS) for t in (threads, -(-size // GRAIN))):
            pieces = [
                super(ExactActivation, self).forward(x) for x in padded.flatten().split(SERIAL)
            ]
            return torch.cat(pieces).view_as(padded)[..., :width]
        return super().forward(padded)[..., :width]


class ExactRotation(nn.Module):
    """Mixin for rotary embeddings: computes the angles of up to 64 positions at a time. Positions
    are padded to 64, unless the angles of one position fill whole SIMD vectors."""

    def forward(self, x, position_ids, *args, **kwargs):
        if current.reach is None:
            return super().forward(x, position_ids, *args, **kwargs)
        count, angles = position_ids.shape[-1], getattr(self, "inv_freq", None)
        whole = angles is not None and len(angles) % ELEMENTS == 0
        padded = position_ids if whole else nn.functional.pad(position_ids, (0, -count % ELEMENTS))
        pieces = [
            super(ExactRotation, self).forward(x, part, *args, **kwargs)
            for part in padded.split(ELEMENTS, dim=-1)
        ]
        if len(pieces) == 1 and whole:
            return pieces[0]
        if isinstance(pieces[0], torch.Tensor):
            return torch.cat(pieces, dim=1)[:, :count]
        return tuple(torch.cat(parts, dim=1)[:, :count] for parts in zip(*pieces, strict=True))


def make_exact(model: PreTrainedModel, info: ModelInfo) -> PackedWeights:
    """Prepare a model for exact calls: pack its linear layers, replace its attention, and wrap its
    activations and rotary embeddings. Return the packed weights.

    Raises `ValueError` with the reason if the model cannot be made exact.
    """
    name = type(model).__name__
    if info.device.type != "cpu" or info.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            "exact calls are made on a CPU in float32 or bfloat16, on a GPU also in float16, not "
            f"on {info.device.type} in {info.dtype}: choose another device or dtype, or leave "
            "exact=False"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(
            f"the attention of {name} cannot be replaced, so its calls cannot be exact: leave "
            "exact=False"
        )
    packed = prepack_linears(model, every=True, timed=False)
    if not packed.layers:
        raise ValueError(
            "exact calls need a second copy of the weights, which exceeds half of the free memory "
            "(or torch has no oneDNN here, nn.Linear was patched, or a torch mode such as "
            "FlopCounterMode is active): leave exact=False"
        )
    model.set_attn_implementation(NAME)
    for module in model.modules():
        for mixin, matches in ((ExactActivation, _is_activation), (ExactRotation, _is_rotation)):
            if matches(module) and not isinstance(module, mixin):
                kind = type(module)
                reduced = {"__reduce__": _as_plain}
                module.__class__ = type(f"Exact{kind.__name__}", (mixin, kind), reduced)
    return packed


def _as_plain(module: nn.Module) -> tuple:
    """Pickle and copy a wrapped module as an instance of its original, importable class."""
    return object.__new__, (type(module).__bases__[1],), module.__dict__


def _is_activation(module: nn.Module) -> bool:
    return type(module).__module__ in ("torch.nn.modules.activation", "transformers.activations")


def _is_rotation(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RotaryEmbedding")


class Operators(TorchDispatchMode):
    """Records modules that use operators whose rounding depends on the number of rows. `found` maps
    the name of each such module to the operator's name."""

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

    def refuses(self, func, args: tuple) -> bool:
        """Return whether an operator's result for one row may round differently if other rows
        change."""
        operator = func._schema.name.split("::")[-1]
        sums = operator in self.SUMS or "scaled_dot" in operator or "grouped_mm" in operator
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        safe = any(isinstance(m, ExactActivation | ExactRotation) for m in self.inside)
        curved = operator in self.CURVES and not safe
        return curved or (sums and tensors[-2].shape[-1] > 1)  # rotary angles sum one term

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.inside and self.refuses(func, args):
            self.found[self.names[self.inside[-1]]] = func._schema.name.split("::")[-1]
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager: record the operators of all calls of the model made within it."""
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


def check_operators(engine: Eager, operators: Operators) -> None:
    """Make one call of the model. Raise `ValueError` with the name of a module that uses an
    operator which `operators` refuses."""
    name = type(engine.model).__name__
    with torch.no_grad(), operators.watching():
        engine.run(0, [], TokenTree.chain(0, ()))
    if operators.found:
        where, what = next(iter(operators.found.items()))
        raise ValueError(
            f"{name} cannot be exact: {where or name + ' itself'} computes {what} (and "
            f"{len(operators.found) - 1} more modules such operators), whose rounding depends "
            "on the number of rows: leave exact=False"
        )


def check_exact(engine: Eager, length: int = TEXT, *, jointly: bool = False) -> None:
    """Check that calls give bitwise identical logits: score a random tree after a text of `length`
    tokens; then feed the text in pieces and the nodes in single steps. With `jointly`, also score
    the tree in one call with another sequence. Overwrites the first slots.

    Raises `ValueError` naming a module that is not exact, or the first difference.
    """
    info, name = engine.info, type(engine.model).__name__
    draw = np.random.default_rng(0)
    length = max(1, min(length, info.max_len - DEPTH - 1))
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
        if isinstance(engine, Exact):
            check_operators(engine, Operators(engine.model))
        engine.cache.set_length(0)
        with torch.inference_mode():
            scored = engine.run(0, text[:-1], tree).clone()
            cuts = [*range(0, length - TEXT, PIECE), *range(max(0, length - TEXT), length)]
            for at, end in pairwise(cuts):  # now the text in pieces, its last tokens one by one
                engine.cache.set_length(at)
                engine.run(at, text[at : end - 1], TokenTree.chain(text[end - 1], ()))
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
            if jointly:
                layouts = [Layout.chain(0, text[:2]), Layout(0, text[:-1], tree)]
                parts = [(engine.new_slots(), layout) for layout in layouts]
                if not torch.equal(engine.call_jointly(parts)[1], scored):
                    raise ValueError(
                        f"{name} is not exact: the logits of a tree differ from those in a call "
                        "with another sequence: leave exact=False"
                    )
    finally:
        engine.cache.set_length(0)
        engine.forwards = 0
