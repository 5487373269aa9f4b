"""Projections of one input, computed as one product.

Queries, keys and values read the same hidden states, as gate and up do. Their weights are laid
behind one another in one buffer, of which each module's own weight becomes a view: the same values,
held once. In compiled code each projection is a part of the whole product, and what is computed
several times from the same inputs is computed once.

Invariant: every module of the model still computes what it did; a layer whose projections are
quantised, or anything but plain linear layers, is left alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PrefixKey(NamedTuple):
    """A projection, where it stands in a model, and the part of the product that equals it."""

    owner: nn.Module
    name: str
    plain: nn.Module
    part: nn.Module


class Part(nn.Module):
    """Columns `start` to `end` of the product with the weights of several projections."""

    def __init__(
        self, weight: nn.Parameter, bias: nn.Parameter | None, start: int, end: int
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.start, self.end = weight, bias, start, end

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        whole = nn.functional.linear(hidden, self.weight, self.bias)
        return whole[..., self.start : self.end]


def fuse_projections(layer: nn.Module) -> list[PrefixKey]:
    """Lay the weights of a decoder layer's projections of one input behind one another."""
    return [
        place
        for owner in layer.modules()
        for names in TOGETHER
        if all(_is_plain(getattr(owner, name, None)) for name in names)
        for place in _joined(owner, names)
    ]


def _is_plain(module: nn.Module | None) -> bool:
    return type(module) is nn.Linear and not is_traceable_wrapper_subclass(module.weight)


@torch.no_grad()
def _joined(owner: nn.Module, names: tuple[str, ...]) -> list[PrefixKey]:
    """Give the projections views of common weights; none where they do not fit together."""
    plain = [getattr(owner, name) for name in names]
    if len({(m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in plain}) > 1:
        return []
    weight = _common([module.weight for module in plain])
    bias = None if plain[0].bias is None else _common([module.bias for module in plain])
    places, start = [], 0
    for name, module in zip(names, plain, strict=True):
        end = start + module.out_features
        places.append(PrefixKey(owner, name, module, Part(weight, bias, start, end)))
        start = end
    return places


def _common(own: list[nn.Parameter]) -> nn.Parameter:
    """Return one buffer with the values of all, which become its views."""
    whole = torch.cat([one.data for one in own])
    for one, view in zip(own, whole.split([len(one) for one in own]), strict=True):
        one.data = view
    return nn.Parameter(whole, requires_grad=False)


class Once(CustomGraphPass):
    """Computes what a graph computes several times from the same inputs once."""

    def __call__(self, graph: Graph) -> None:
        found: dict[str, torch.fx.Node] = {}
        for node in list(graph.nodes):
            tags = getattr(node.target, "tags", ())
            if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags:
                continue
            first = found.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


ONCE = Once()
