"""Choose stand-in shapes that fit this machine's memory, with fewer layers where they must.

    python scripts/gpu/shapes.py yi-34b yi-6b --context 2048

prints the override for `ouroboros bench`: model.standin={target:yi-34b,draft:yi-6b}, or with 90, 80
or 70 % of both models' layers. Exits with 1 if not even these fit. Nothing is loaded.
"""

from __future__ import annotations

import argparse

import torch

from ouroboros import standin
from ouroboros.engine.static import NODES, padded_slots
from ouroboros.tuning.memory import DeviceMemory, footprint_of, longest_context

SHARES = (1, 0.9, 0.8, 0.7)
WORKSPACE_BYTES = 2 << 30  # graph pools, logits of both models, cuBLAS, the driver
CACHE_COPIES = 2  # a cache that grows is copied


def fitting(shapes: dict[str, str], *, context: int, memory_bytes: int) -> dict[str, str] | None:
    """Return {role: shape} with the largest of `SHARES` of the layers that fits in bfloat16 with
    caches of `context` tokens; None if none does."""
    slots = CACHE_COPIES * padded_slots(context + NODES[-1])
    for share in SHARES:
        found = shapes
        if share < 1:
            found = {
                role: f"{name}@{round(share * standin.shape(name).num_hidden_layers)}"
                for role, name in shapes.items()
            }
        sizes = {
            role: footprint_of(standin.shape(name), torch.bfloat16) for role, name in found.items()
        }
        if longest_context(sizes, memory_bytes - WORKSPACE_BYTES) >= slots:
            return found
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--context", type=int, default=2048)
    args = parser.parse_args()
    names = {"target": args.target} | ({"draft": args.draft} if args.draft else {})
    found = fitting(names, context=args.context, memory_bytes=DeviceMemory.of().total_bytes)
    if found is None:
        raise SystemExit(f"{' and '.join(names.values())} do not fit in this machine's memory")
    print("model.standin={" + ",".join(f"{role}:{name}" for role, name in found.items()) + "}")
