"""Check and time the attention kernel of `ouroboros.engine.kernels` alone, on random keys.

Held against float64 and against torch's `scaled_dot_product_attention` with keys and values
repeated for each query head, which is what transformers does. Where our kernel cannot run (no GPU,
no Triton) the packed form of `ouroboros.engine.attention` takes its place, and the rows say so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention

from ouroboros.costs.timing import elapsed_ms, random_tree
from ouroboros.engine.attention import kernel_attention
from ouroboros.engine.kernels import fits
from ouroboros.engine.masks import additive

Sizes = Sequence[int]
Grid = Sequence[Sizes]
WIDTH = 128
LEAST_ERROR = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}
ERROR_RATIO = 2.0  # of our error over that of torch's own attention


@dataclass(frozen=True)
class Check:
    """One comparison: whether it passed, and the figures that it rests on."""

    name: str
    passed: bool
    figures: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """The inputs of one call: query [1, heads, nodes, width], key and value [1, kv_heads, slots,
    width] as they lie in a larger cache, additive mask [1, 1, nodes, slots]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor

    @property
    def kernel(self) -> bool:
        """Whether our kernel takes this call."""
        return fits(self.query, self.key, self.value, self.mask)

    def ours(self) -> torch.Tensor:
        """[1, nodes, heads, width] by the attention that a `CachedModel` uses."""
        group = self.query.shape[1] // self.key.shape[1]
        module = SimpleNamespace(num_key_value_groups=group, is_causal=True, training=False)
        args = (self.query, self.key, self.value, self.mask)
        return kernel_attention(module, *args)[0]  # type: ignore[arg-type]

    def repeated(self) -> torch.Tensor:
        """The same by torch, keys and values repeated for each query head."""
        return self._plain(self.query, self.key, self.value, self.mask)

    def exact(self) -> torch.Tensor:
        """The same in float64."""
        mask = torch.zeros_like(self.mask, dtype=torch.float64)
        mask.masked_fill_(self.mask < 0, float("-inf"))
        return self._plain(self.query.double(), self.key.double(), self.value.double(), mask)

    def _plain(self, query, key, value, mask) -> torch.Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(group, dim=1) for t in (key, value))
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return out.transpose(1, 2)


def random_call(
    heads: int,
    kv_heads: int,
    nodes: int,
    slots: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
) -> Call:
    """Return a random call: a tree at the end of the slots in use, a few slots behind it unused."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    unused = min(5, slots - nodes)
    base = slots - nodes - unused
    seen = torch.zeros(nodes, slots, dtype=torch.bool)
    seen[:, :base] = True
    tree = random_tree(nodes, draw=random.Random(seed))
    seen[:, base : base + nodes] = torch.from_numpy(tree.ancestors())
    query = normal(1, nodes, heads, WIDTH).transpose(1, 2)
    keys, values = (normal(kv_heads, slots + 64, WIDTH)[None, :, :slots] for _ in range(2))
    return Call(query, keys, values, additive(seen.to(device), dtype))


def random_calls(
    device: torch.device, dtype: torch.dtype, layouts: Grid, nodes: Sizes, slots: Sizes
) -> Iterator[Call]:
    """Yield a call for each [heads, key heads] of `layouts`, number of nodes and of slots."""
    for (heads, kv_heads), count, length in product(layouts, nodes, slots):
        if length >= count:
            yield random_call(heads, kv_heads, count, length, device=device, dtype=dtype)


def attention_agrees(
    device: torch.device, dtype: torch.dtype, *, layouts: Grid, nodes: Sizes, slots: Sizes
) -> Check:
    """Compare our attention with float64; its error may be `ERROR_RATIO` times that of torch's own.
    On a GPU it must be the kernel that runs."""
    ours, theirs, kernel, calls = 0.0, 0.0, 0, 0
    for call in random_calls(device, dtype, layouts, nodes, slots):
        exact = call.exact()
        ours = max(ours, float((call.ours().double() - exact).abs().max()))
        theirs = max(theirs, float((call.repeated().double() - exact).abs().max()))
        kernel, calls = kernel + call.kernel, calls + 1
    right = ours <= max(ERROR_RATIO * theirs, LEAST_ERROR[dtype])
    used = kernel == calls or device.type != "cuda"
    figures = {"calls": calls, "by_kernel": kernel, "max_error": ours, "max_error_sdpa": theirs}
    return Check(f"attention {str(dtype)[6:]}", right and used and calls > 0, figures)


def attention_times(
    device: torch.device,
    dtype: torch.dtype,
    *,
    layouts: Grid,
    nodes: Sizes,
    slots: Sizes,
    repeats: int = 20,
) -> list[dict]:
    """Return a row for each call: milliseconds of our attention and of torch's with repeated keys
    and values, and `read_mb`, the keys and values that any of them must read."""
    return [
        {
            "heads": call.query.shape[1],
            "kv_heads": call.key.shape[1],
            "nodes": call.query.shape[2],
            "slots": call.key.shape[2],
            "kernel": call.kernel,
            "read_mb": 2 * call.key.numel() * call.key.element_size() / 1e6,
            "ours_ms": _ms(call.ours, device, repeats),
            "repeated_ms": _ms(call.repeated, device, repeats),
        }
        for call in random_calls(device, dtype, layouts, nodes, slots)
    ]


def _ms(call: Callable[[], torch.Tensor], device: torch.device, repeats: int) -> float:
    """Return the milliseconds of one of many calls without a wait between them; on a GPU of graph
    replays, since a call from Python takes longer to launch than to run."""
    for _ in range(3):
        call()
    again: Callable[[], object] = call
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        again = graph.replay
        again()

    def all_of_them() -> None:
        for _ in range(repeats):
            again()

    return elapsed_ms(all_of_them, device) / repeats
