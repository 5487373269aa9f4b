"""What a job of the campaign needs before it is begun: bytes of memory, and seconds.

From shapes alone, by bytes and bandwidth. Invariant: nothing is loaded, and an estimate is rather
too high: a stage that is cut loses what it has not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from ouroboros import standin
from ouroboros.costs.surface import Footprint
from ouroboros.engine.static import NODES, padded_slots
from ouroboros.tuning.memory import SPARE, footprint_of

WORKSPACE_BYTES = 2 << 30  # graphs' pools, logits of both models, cuBLAS, the driver's own
CACHE_COPIES = 2  # a cache that grows is copied
PROCESS_S = 25.0  # a process begins, imports, and reads the pair
FILL_BYTES_PER_S = 0.05e12  # a stand-in's weights are drawn and written
COMPILE_S = 8.0  # one of a layer's shapes
COMPILATIONS = 8  # of both models
CAPTURE_S = 0.25  # one graph, its trial calls included
OF_FLOOR = 0.75  # of a call's bandwidth floor is reached, at worst
EAGER_MS = 0.6  # of one layer called by Python
HOST_MS = 1.0  # of a step
DRAFTED_NEW, DRAFT_CALLS = 2.5, 6  # tokens and draft calls of a step that drafts, at worst
WARM_UP_TOKENS = 32


@dataclass(frozen=True)
class Machine:
    """A GPU: its memory, and how fast it copies."""

    memory_bytes: int
    bytes_per_s: float


H100 = Machine(78 << 30, 3.0e12)
H200 = Machine(139 << 30, 4.3e12)


def by_memory(memory_bytes: int) -> Machine:
    """Return the known machine that has no more memory, or the smallest."""
    return H200 if memory_bytes >= H200.memory_bytes else H100


@cache
def footprint(shape: str, dtype: torch.dtype) -> Footprint:
    """Return the bytes of a shape."""
    return footprint_of(standin.shape(shape), dtype)


def footprints(shapes: Mapping[str, str], dtype: torch.dtype) -> dict[str, Footprint]:
    """Return the bytes of each role's shape."""
    return {role: footprint(name, dtype) for role, name in shapes.items()}


def needed_bytes(own: Mapping[str, Footprint], context: int) -> int:
    """Return what a job on up to so many tokens takes."""
    slots = CACHE_COPIES * padded_slots(context + NODES[-1])
    held = sum(one.weight_bytes + slots * one.kv_bytes_per_token for one in own.values())
    return held + WORKSPACE_BYTES


def fitting(
    shapes: Mapping[str, str],
    dtype: torch.dtype,
    *,
    context: int,
    memory_bytes: int,
    shares: Sequence[float],
) -> dict[str, str] | None:
    """Return the shapes, with the largest of the `shares` of their layers that fits in a memory;
    None where none does."""
    for share in shares:
        found = {role: standin.shallower(name, share) for role, name in shapes.items()}
        if needed_bytes(footprints(found, dtype), context) <= (1 - SPARE) * memory_bytes:
            return found
    return None


@dataclass(frozen=True)
class Seconds:
    """Estimates for one pair on one machine; `shapes` have "target" and, perhaps, "draft"."""

    shapes: Mapping[str, str]
    machine: Machine
    dtype: torch.dtype = torch.bfloat16

    def loading(self) -> float:
        """Build both models and compile their layers."""
        weights = sum(o.weight_bytes for o in footprints(self.shapes, self.dtype).values())
        return weights / FILL_BYTES_PER_S + COMPILATIONS * COMPILE_S

    def captures(self, contexts: Sequence[int], nodes: int = len(NODES)) -> float:
        """Capture both models' graphs of so many sizes at each of the contexts."""
        slots = {padded_slots(context) for context in contexts}
        return len(self.shapes) * len(slots) * nodes * CAPTURE_S

    def call(self, role: str, context: int = 512) -> float:
        """One captured call."""
        own = footprint(self.shapes[role], self.dtype)
        return own.call_bytes(context) / self.machine.bytes_per_s / OF_FLOOR

    def eager_call(self, role: str) -> float:
        """One call by transformers' own Python."""
        layers = standin.shape(self.shapes[role]).num_hidden_layers
        return max(self.call(role), layers * EAGER_MS / 1e3)

    def decoder(self, options: Mapping, tokens: int) -> float:
        """Decode so many tokens by a configured decoder."""
        peer, drafts = str(options["_target_"]).endswith("HFGenerate"), bool(options.get("draft"))
        plain = str(options["_target_"]).endswith("Greedy") or options.get("mode") == "greedy"
        call = self.eager_call if peer else self.call
        drafting = DRAFT_CALLS * call("draft") if drafts else 0.0
        step = call("target") + drafting + HOST_MS / 1e3
        return tokens / (1.0 if plain else DRAFTED_NEW) * step

    def run(self, decoders: Mapping[str, Mapping], prompts: int, max_new: int) -> float:
        """Warm up and run every decoder."""
        tokens = prompts * max_new + min(max_new, WARM_UP_TOKENS)
        return sum(self.decoder(own, tokens) for own in decoders.values())

    def profile(self, options: Mapping) -> float:
        """Time the calls of both models as `profile` options say."""
        calls = options["visits"] * options["calls"] * len(options["nodes"])
        timed = sum(self.call(role, c) for role in self.shapes for c in options["contexts"])
        return calls * timed + self.captures(options["contexts"], len(options["nodes"]))
