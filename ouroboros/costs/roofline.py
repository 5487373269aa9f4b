"""Costs from bytes and bandwidth alone: what calls would cost on a machine that nobody measured.

A call reads its weights and its keys and values once, however few nodes it scores, until the
arithmetic of many nodes takes longer. Invariant: this is a floor; real calls take longer.
"""

from __future__ import annotations

from ouroboros.costs.surface import Costs, Footprint, Surface

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (1, 4096, 32768)


def roofline(
    target: Footprint,
    draft: Footprint | None,
    *,
    bandwidth_gb_s: float,
    tflops: float | None = None,
    host_ms: float = 0.0,
) -> Costs:
    """Return the costs of a pair on a machine with this bandwidth (10^9 bytes a second read) and
    this arithmetic (10^12 operations a second, two for each weight of two bytes; None: never the
    limit). No prefill is counted.

    Raises `ValueError` for a bandwidth that is not above 0.
    """
    if bandwidth_gb_s <= 0 or (tflops is not None and tflops <= 0):
        raise ValueError(f"a bandwidth of {bandwidth_gb_s} GB/s: give one above 0, and so tflops")

    def surface(own: Footprint) -> Surface:
        return Surface(
            {
                context: {
                    nodes: max(
                        own.call_bytes(context) / bandwidth_gb_s / 1e6,
                        nodes * own.read_bytes / tflops / 1e9 if tflops else 0.0,
                    )
                    for nodes in NODES
                }
                for context in CONTEXTS
            }
        )

    pair = {"target": target} | ({} if draft is None else {"draft": draft})
    return Costs(
        surface(target),
        None if draft is None else surface(draft),
        {"": host_ms},
        footprints=pair,
        copy_bytes_per_s=1e9 * bandwidth_gb_s,
        about={"computed": "bytes / bandwidth"},
    )
