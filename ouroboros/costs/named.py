"""Costs by name, for where nothing was measured: the shapes that decide how large a tree pays."""

from __future__ import annotations

from pathlib import Path

from ouroboros.costs.surface import Costs, Surface

NAMED = {
    "flat": Costs(Surface.flat({1: 1.0, 64: 1.0, 128: 1.25, 256: 2.0}), Surface.constant(0.18)),
    "steep": Costs(
        Surface.flat({1: 1.0, 8: 1.18, 16: 1.34, 32: 1.69, 64: 2.44, 128: 3.85, 256: 6.7}),
        Surface.flat({1: 0.23, 8: 0.27, 16: 0.31, 32: 0.39, 64: 0.54, 128: 0.89, 256: 1.6}),
    ),
}
"""In target calls of one node. "flat": a GPU, where a call of 64 nodes takes as long as one of one;
"steep": two cores of a CPU, where it takes 2.4 times as long (a 477 MB target, a 101 MB draft)."""


def named(name: str) -> Costs:
    """Return the costs of a name, or of a file. Raises `ValueError` for what is neither."""
    if name in NAMED:
        return NAMED[name]
    if not Path(name).exists():
        raise ValueError(f"costs {name!r} are not one of {', '.join(NAMED)}, nor a file")
    return Costs.load(Path(name))
