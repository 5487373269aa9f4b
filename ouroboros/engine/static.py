"""Calls of fixed shapes, captured as CUDA graphs.

The number of nodes in a call and the number of cache slots that it reads are each padded to one of
a few sizes. All inputs (ids, positions, the tree, its first slot, the rows of the logits) are
copied at once to a fixed buffer on the device, where the masks are built. On a GPU each pair of
sizes is captured once, with compiled decoder layers, and replayed afterwards; token selection is
captured too. On a CPU the same calls run directly. On a GPU with the attention kernel, joint calls
are captured once per padded total number of nodes, whatever slots their sequences use.

Invariants: no node attends to padding; padded nodes use slots after the tree's, which the next call
overwrites. All captures use one side stream and contain no synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from ouroboros.core.tree import ROOT
from ouroboros.engine.attention import KERNEL_NAME, attention_of
from ouroboros.engine.cache import ModelInfo, SharedSlots, SlotCache
from ouroboros.engine.compiled_layers import CompiledLayers
from ouroboros.engine.eager import MOST_HELD, Eager, Part, make_room
from ouroboros.engine.masks import Layout, spread
from ouroboros.engine.tables import pack_jointly, unpack_jointly
from ouroboros.engine.triton_attention import block_tokens

NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
LEAST_SLOTS = 256


def padded_nodes(count: int) -> int:
    """Return the padded size of a call of `count` nodes.

    >>> [padded_nodes(count) for count in (1, 3, 65, 257)]
    [1, 4, 96, 512]
    """
    largest = NODES[-1]
    return next((size for size in NODES if size >= count), -(-count // largest) * largest)


def padded_slots(count: int) -> int:
    """Return the number of slots that a call reads if `count` are in use: 2^k or 3 x 2^k.

    >>> [padded_slots(count) for count in (1, 257, 400, 600, 1030)]
    [256, 384, 512, 768, 1536]
    """
    size = LEAST_SLOTS
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


class CapturedGraph(NamedTuple):
    """A captured computation; a replay repeats it on the current values of `inputs`."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    result: torch.Tensor


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the device's stream for captures. There is only one, because each stream costs a
    cuBLAS workspace."""
    return torch.cuda.Stream(device)


def replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    """Time five replays with CUDA events; return the milliseconds of the fastest."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
    for mark in marks:
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return min(start.elapsed_time(end) for start, end in pairwise(marks))


class Static(Eager):
    """The engine with calls of fixed shapes. On a GPU it replays them as CUDA graphs, of compiled
    layers unless `compiled` is false; `products` is an option of `CompiledLayers`."""

    def __init__(
        self,
        model: PreTrainedModel,
        info: ModelInfo,
        cache: SlotCache,
        *,
        compiled: bool = True,
        products: bool = False,
    ) -> None:
        super().__init__(model, info, cache)
        self.graphs = info.device.type == "cuda"
        own = self.graphs and compiled
        self.compiled = CompiledLayers(model, products=products) if own else None
        config = model.config.get_text_config()
        self.captures_jointly = self.graphs and attention_of(model) == KERNEL_NAME
        kv_heads = min(shape.kv_heads for shape in info.layers)
        heads = getattr(config, "num_attention_heads", kv_heads)
        self.block_tokens = block_tokens(heads, kv_heads)
        self.shared = SharedSlots(info.layers)
        self._inputs: dict[int, torch.Tensor] = {}
        self._calls: dict[Hashable, CapturedGraph] = {}
        self._choices: dict[Hashable, CapturedGraph] = {}
        self._capacity = 0, 0
        self._memory: Any = None  # torch does not name its type
        self._logits: torch.Tensor | None = None

    def feed_prompt(self, part: Part) -> Part:
        """See `Eager.feed_prompt`. Calls of fixed shapes feed as many tokens as fit before."""
        slots, layout = part
        if slots is not self.cache:
            return super().feed_prompt(part)
        known, missing, tree, _ = layout
        while missing and len(missing) + len(tree) > NODES[-1]:
            self.call([(slots, Layout.chain(known, missing[: NODES[-1]]))])
            known, missing = known + len(missing[: NODES[-1]]), missing[NODES[-1] :]
        return slots, layout._replace(base=known, missing=missing)

    def prepare(self, context: int, rows: int = 1) -> None:
        """Reserve slots for calls on up to `context` slots. On a GPU, capture these calls at every
        padded size and, if `rows` > 1 and they can be captured, joint calls."""
        self.cache.reserve(padded_slots(context + NODES[-1]))
        if rows > 1 and self.captures_jointly:
            self.shared.grow(rows, padded_slots(context + NODES[-1]))
            for nodes in NODES:
                self._call_several([], nodes)
        for nodes in NODES if self.graphs else ():
            slots = 0
            while slots < padded_slots(context + nodes):
                slots = padded_slots(slots + 1)
                if slots >= nodes:
                    self._call_one(Layout(0, [], ROOT), shape=(nodes, slots))

    def choosing(
        self, key: Hashable, compute: Callable, logits: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        held = self._logits
        if not self.graphs or held is None or logits.data_ptr() != held.data_ptr():
            return compute(logits, *inputs)
        count, width = logits.shape
        size = padded_nodes(count)
        with self._on_device():
            if (key, size, width) not in self._choices:
                # All sizes are captured now, so that none is captured during a timed run. They
                # share one buffer for each of `inputs`.
                buffers = [x.new_zeros(max(size, NODES[-1]), *x.shape[1:]) for x in inputs]
                for rows in sorted({*NODES, size}):

                    def chosen(*x: torch.Tensor, rows: int = rows) -> torch.Tensor:
                        return compute(held[:rows, :width], *x)

                    own = tuple(x[:rows] for x in buffers)
                    self._choices[key, rows, width] = self._capture(chosen, own)
            graph, fixed, result = self._choices[key, size, width]
            for buffer, given in zip(fixed, inputs, strict=True):
                buffer[:count].copy_(given)
            graph.replay()
        return result[:count]

    def _on_device(self):
        """Context manager: make the model's device the current CUDA device."""
        device = self.info.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _layers(self):
        """Return a context in which the model has its compiled layers, if any."""
        return nullcontext() if self.compiled is None else self.compiled.swapped_in()

    def new_slots(self) -> SlotCache:
        return (
            self.shared.slab(self.cache.capacity) if self.captures_jointly else super().new_slots()
        )

    def call(self, parts: Sequence[Part], token: torch.Tensor | None = None) -> list[torch.Tensor]:
        """See `Eager.call`. A call for several sequences is eager if it cannot be captured, as with
        more than `NODES[-1]` fed tokens."""
        make_room(parts)
        logits, fed = None, sum(layout.fed for _, layout in parts)
        if parts[0][0] is self.cache:
            logits = self._call_one(parts[0][1], token)
        elif self.captures_jointly and fed <= NODES[-1]:
            logits = self._call_several(parts, padded_nodes(fed))
        if logits is None:
            return super().call(parts, token)
        self.forwards += 1
        counts = [len(layout.rows) for _, layout in parts]
        return list(logits[: sum(counts)].split(counts))

    def _call_one(
        self,
        layout: Layout,
        token: torch.Tensor | None = None,
        *,
        shape: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Run a call for the sequence in the model's own slots; return [nodes, vocab] logits.
        `shape` overrides the padded numbers of nodes and slots."""
        ids = layout.known_ids(self.info.vocab_size)
        size = padded_nodes(len(ids))
        nodes, slots = shape or (size, padded_slots(layout.base + layout.held + size))
        self.cache.reserve(slots)
        words = pack(ids, layout, size=nodes)

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            ids, rows, base, held, positions, inside = unpack(inputs, nodes)
            at = torch.arange(slots, device=base.device)
            own = held + at[:nodes]
            masks = spread if self.compiled is None else self.compiled.masks
            with self._layers(), self.cache.fixed_slots(base + own, at):
                mask = masks(inside, positions, own, base, at, self.info)
                return self.forward(ids[None], positions[own][None], mask, rows, self.cache)

        return self._computed((nodes, slots), words, nodes, forward, token)

    def _call_several(self, parts: Sequence[Any], nodes: int) -> torch.Tensor | None:
        """Run a call for several sequences, padded to `nodes` tokens; return [nodes, vocab] logits.
        Return None if it needs more attention blocks than a captured call of this size has (see
        `ouroboros.engine.tables`)."""
        whole = self.shared.whole
        sizes = {"size": nodes, "most": self.block_tokens, "spare": whole.capacity - 1}
        words = pack_jointly(parts, self.info, **sizes)

        def forward(inputs: torch.Tensor) -> torch.Tensor:
            ids, rows, positions, slots, mask = unpack_jointly(inputs, self.info, nodes)
            view = torch.arange(whole.capacity, device=inputs.device)
            with self._layers(), whole.fixed_slots(slots, view):
                return self.forward(ids[None], positions[None], mask, rows, whole)

        return None if words is None else self._computed(nodes, words, nodes, forward)

    def _computed(
        self,
        key: Hashable,
        words: np.ndarray,
        nodes: int,
        forward: Callable[[torch.Tensor], torch.Tensor],
        token: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copy the packed inputs `words` to the device and return the logits `forward(inputs)`,
        [nodes, vocab]. On a GPU replay the graph stored under `key`; capture it first if it is new
        or a cache has been reallocated. `token` replaces the first word, which is the first id."""
        device, inputs = self.info.device, torch.from_numpy(words)
        with self._on_device():
            if len(words) not in self._inputs:
                self._inputs[len(words)] = torch.zeros_like(inputs, device=device)
            if device.type == "cuda":  # pageable memory would be copied twice
                inputs = inputs.pin_memory()
            inputs = self._inputs[len(words)].copy_(inputs, non_blocking=True)
            if token is not None:
                inputs[:1] = token
            capacity = self.cache.capacity, self.shared.whole.capacity
            if self._capacity != capacity:  # a cache has moved: graphs are stale
                self._calls.clear()
                self._memory = None
                self._capacity = capacity
            if not self.graphs:
                return forward(inputs)
            if key not in self._calls:
                self._calls[key] = self._capture_call(forward, inputs, nodes)
            graph, _, logits = self._calls[key]
            graph.replay()
        return logits

    def _capture_call(
        self, forward: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, nodes: int
    ) -> CapturedGraph:
        """Capture a call of one shape. It uses the real inputs, because the warm-up writes the same
        cache slots as the replay. The logits of all shapes share one buffer.

        The first call of a single node is captured with tuned and with untuned layers; the faster
        kind is used from then on.
        """

        def call(_: torch.Tensor) -> torch.Tensor:
            logits = forward(inputs)
            if self._logits is None or len(self._logits) < nodes:
                self._logits = logits.new_zeros(max(nodes, NODES[-1]), logits.shape[-1])
                self._choices.clear()
            return self._logits[:nodes].copy_(logits)

        if nodes > 1 or self.compiled is None or self.compiled.tuned is not None:
            return self._capture(call, (inputs,))
        graphs = {}
        for self.compiled.tuned in (False, True):
            graphs[self.compiled.tuned] = self._capture(call, (inputs,))
        self.compiled.tuned = replay_ms(graphs[True].graph) < replay_ms(graphs[False].graph)
        return graphs[self.compiled.tuned]

    def _capture(self, compute: Callable, inputs: tuple[torch.Tensor, ...]) -> CapturedGraph:
        """Capture `compute(*inputs)` in the memory pool of all graphs. Raises `RuntimeError` before
        the capture if the computation synchronises with the host."""
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        side, graph = side_stream(self.info.device), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute(*inputs)
            mode = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                compute(*inputs)
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, pool=self._memory, stream=side):
            result = compute(*inputs)
        return CapturedGraph(graph, inputs, result)


def pack(ids: Sequence[int], layout: Layout, *, size: int) -> np.ndarray:
    """Pack the inputs of a call, padded to `size` nodes, into one array of int64 words. In order:

    - `size` ids and `size` rows of the logits
    - the layout's first slot, and its number of `held` nodes
    - the positions of `MOST_HELD` + `size` columns: first the held nodes, then the fed tokens
    - each fed token's mask over these columns, a byte each

    Padding has the first position and attends only to itself and the context.
    """
    n, held, width = len(ids), layout.held, MOST_HELD + size
    rows, positions = layout.rows, layout.positions()
    words = np.zeros(2 * size + 2 + width + size * width // 8 + 1, dtype=np.int64)
    words[:n] = ids
    words[size : size + len(rows)] = rows
    words[2 * size : 2 * size + 2] = layout.base, held
    columns, bits = words[2 * size + 2 :][:width], words[2 * size + 2 + width :]
    columns[:] = positions[0]
    columns[: len(positions)] = positions
    inside = bits.view(np.uint8)[: size * width].reshape(size, width)
    inside[:n, : held + n] = layout.seen()
    np.fill_diagonal(inside[:, held:], 1)
    return words


def unpack(words: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Return views of the inputs packed in `words`: ids and rows [size], base and held [1],
    positions [columns], mask [size, columns] bool."""
    width = MOST_HELD + size
    ids, rows, base, held, positions, bits = words.split(
        [size, size, 1, 1, width, size * width // 8 + 1]
    )
    inside = bits.view(torch.uint8)[: size * width].view(size, width) > 0
    return ids, rows, base, held, positions, inside
