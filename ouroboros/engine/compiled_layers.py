"""Decoder layers compiled one by one, with fused projections, swapped in only during a call.

Compiled code takes one layer and that layer's cache slots, so all layers share it. All call sizes
share it too, except calls of a single node, which have tuned code whose matrix products run at
memory bandwidth. Projections of the same input (queries, keys and values; gate and up) are fused
into one matrix product: their weights share one buffer, and each module's weight is a view of it.
Layers with int8 weights, and all layers if requested, use the kernels of `engine.triton_products`.

Invariant: outside `swapped_in` the model is unchanged, so transformers' own generation can run the
plain model in the same process; weights keep their values and are stored once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph
from torch.fx.experimental import _config
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper_subclass
from torch.utils._pytree import tree_iter, tree_map
from transformers import PreTrainedModel

from ouroboros.engine.cache import SlotCache
from ouroboros.engine.masks import Masks, spread
from ouroboros.engine.quantised import Int8Linear
from ouroboros.engine.triton_products import plain, product

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
DYNAMIC_AXES = {1: (0,), 2: (1,), 3: (1,), 4: (2, 3)}  # by rank: the axes of nodes and slots


class DeduplicatePass(CustomGraphPass):
    """Compiler pass that computes repeated expressions of a graph once."""

    def __call__(self, graph: Graph) -> None:
        known: dict[str, torch.fx.Node] = {}
        for node in list(graph.nodes):
            tags = getattr(node.target, "tags", ())
            if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
                continue
            first = known.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


RECOMPILING = {
    "recompile_limit": 64,  # models need 4 to 8
    "fail_on_recompile_limit_hit": True,
}
OPTIONS: dict[str, Any] = {"post_grad_custom_pre_pass": DeduplicatePass(), "combo_kernels": True}


class Swap(NamedTuple):
    """The model's module at `owner.name` (`plain`), and the one that replaces it during calls."""

    owner: nn.Module
    name: str
    plain: nn.Module
    other: nn.Module


class CompiledLayers:
    """A model's decoder layers, compiled with `backend` of `torch.compile`.

    - `products`: use the kernels of `engine.triton_products` for unquantised weights too, if faster
    - `tuned` (attribute): whether calls of one node use tuned code; None until both were timed
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        backend: Any = "inductor",
        products: bool = False,
    ) -> None:
        count = model.config.get_text_config().num_hidden_layers
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
        layers = next((item for item in lists if len(item) == count), nn.ModuleList())
        self.compiled = [CompiledLayer(layer, i, backend) for i, layer in enumerate(layers)]
        self.tuned: bool | None = None
        self.spread = torch.compile(spread, backend=backend)
        self.swaps = [
            Swap(layers, str(index), plain, compiled)
            for index, (plain, compiled) in enumerate(zip(layers, self.compiled, strict=True))
        ]
        for layer in layers:
            self.swaps += fuse_projections(layer, product if products else None)

    def masks(self, inside: torch.Tensor, *rest) -> Masks:
        """Compute the masks of `engine.masks.spread` with compiled code."""
        mark_dynamic(inside, (0, 1))
        for tensor in filter(torch.is_tensor, rest):
            mark_dynamic(tensor)
        return self.spread(inside, *rest)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Context manager: within it, the model has the compiled layers in place of its own."""
        for layer in self.compiled:
            layer.tuned = self.tuned is not False
        for owner, name, _, other in self.swaps:
            setattr(owner, name, other)
            if isinstance(other, ProductColumns):
                other.alone = self.tuned is not False
        # Two axes of equal size must not be compiled as one symbol.
        sizes = _config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
        try:
            with sizes, dynamo_config.patch(RECOMPILING):
                yield
        finally:
            for owner, name, plain, _ in self.swaps:
                setattr(owner, name, plain)


class CompiledLayer(nn.Module):
    """One layer, compiled separately for calls of one node and for larger calls."""

    def __init__(self, layer: nn.Module, index: int, backend: Any) -> None:
        super().__init__()
        self.index, self.tuned = index, True
        options = OPTIONS if backend == "inductor" else None
        single = options and {**options, "coordinate_descent_tuning": True}
        self.any = torch.compile(layer, backend=backend, options=options)
        self.single = torch.compile(layer, backend=backend, options=single)

    def forward(self, hidden: torch.Tensor, *args, **kwargs):
        """Call the layer; replace a `SlotCache` among the arguments by this layer's part of it."""

        def own_slots(value):
            if not isinstance(value, SlotCache):
                return value
            slots = value.fixed_layer(self.index)
            for tensor in vars(slots).values():
                mark_dynamic(tensor)
            return slots

        args, kwargs = tree_map(own_slots, (args, kwargs))
        for tensor in filter(torch.is_tensor, tree_iter((hidden, args, kwargs))):
            mark_dynamic(tensor)
        layer = self.single if self.tuned and hidden.shape[1] == 1 else self.any
        return layer(hidden, *args, **kwargs)


def mark_dynamic(tensor: torch.Tensor, axes: Sequence[int] | None = None) -> None:
    """Mark `axes` of a tensor (None: its node and slot axes, see `DYNAMIC_AXES`) as dynamic, so
    that new sizes do not recompile. Axes of size 1 stay static."""
    for axis in DYNAMIC_AXES.get(tensor.ndim, ()) if axes is None else axes:
        if tensor.shape[axis] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)


class ProductColumns(nn.Module):
    """Replaces a projection: returns columns `start` to `end` of the matrix product with
    `operands`, the weight, scale and bias of one projection or of several fused ones.

    `kernel` computes the matrix product: `product`, or None for torch's, which is compiled with the
    layer. With `alone`, single rows use torch's too.
    """

    alone = True

    def __init__(self, operands: Sequence[Any], start: int, end: int, *, kernel: Any) -> None:
        super().__init__()
        self.weight, self.scale, self.bias = operands
        self.start, self.end, self.kernel = start, end, kernel

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        single = hidden.shape[1] == 1 and self.alone
        kernel = plain if single or self.kernel is None else self.kernel
        whole = kernel(hidden, self.weight, self.scale, self.bias)
        return whole[..., self.start : self.end]


@torch.no_grad()
def fuse_projections(layer: nn.Module, kernel: Any = None) -> list[Swap]:
    """Fuse the projections of a layer that have the same input, as named in `FUSED`: store their
    weights in one buffer. Return a `Swap` for each module to replace.

    These are the fused projections, all int8 layers and, if `kernel` (`product`) is given, all
    linear layers. Skips layers quantised by transformers, subclasses of `nn.Linear`,
    and projections of different input widths, dtypes or devices, or of which only some have a bias.
    """
    swaps: list[Swap] = []
    done: set[nn.Module] = set()
    for owner in layer.modules():
        singles = [(name,) for name, _ in owner.named_children()]
        for names in (*FUSED, *singles):
            linears: list[Any] = [getattr(owner, name, None) for name in names]
            plain_weights = all(
                type(m) in (nn.Linear, Int8Linear) and not is_wrapper_subclass(m.weight)
                for m in linears
            )
            if done & set(linears) or not plain_weights:
                continue
            own = kernel or (product if type(linears[0]) is Int8Linear else None)
            kind = {
                (m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in linears
            }
            if len(kind) > 1 or (len(names) == 1 and own is None):
                continue
            parts: list[Any] = [
                [getattr(m, one, None) for m in linears] for one in ("weight", "scale", "bias")
            ]
            operands = [None if part[0] is None else _common_buffer(part) for part in parts]
            done.update(linears)
            end = 0
            for name, module in zip(names, linears, strict=True):
                start, end = end, end + module.out_features
                columns = ProductColumns(operands, start, end, kernel=own)
                swaps.append(Swap(owner, name, module, columns))
    return swaps


def _common_buffer(weights: list[nn.Parameter]) -> nn.Parameter:
    """Return one buffer with the values of all weights; turn the weights into views of it, unless
    another wrapper of the model has done so."""
    if len(weights) == 1:
        return weights[0]
    first, rows = weights[0].data, sum(map(len, weights))
    starts = [weight.data_ptr() for weight in weights]
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    one_buffer = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    if one_buffer and starts[1:] == ends[:-1] and all(w.is_contiguous() for w in weights):
        whole = first.as_strided((rows, *first.shape[1:]), first.stride())
        return nn.Parameter(whole, requires_grad=False)
    whole = torch.cat([weight.data for weight in weights])
    for weight, view in zip(weights, whole.split([len(w) for w in weights]), strict=True):
        weight.data = view
    return nn.Parameter(whole, requires_grad=False)
