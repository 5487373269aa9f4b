"""The cost of one call of a model: a `Surface` has its milliseconds by nodes and context length, a
`Footprint` the bytes that it reads.

Invariant: calls larger than those measured are extrapolated; if a single size was measured, they
raise `ValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Table = Mapping[float, Mapping[float, float]]


@dataclass(frozen=True)
class Surface:
    """Milliseconds of one call of a model, from its start until the chosen tokens are on the host.

    `ms[context][nodes]`: `context` is the number of tokens of the sequence, including the tree's
    root; `nodes` is the size of the tree. The context `inf` means that the cost does not depend on
    the context. `padded`: the engine pads trees to the sizes in the table, so a call costs as much
    as the next larger size, without interpolation. `spread_ms`, if known, is half the interquartile
    range, in the same layout.

    >>> Surface({100: {1: 10.0, 9: 18.0}, 300: {1: 12.0, 9: 20.0}}).call_ms(5, 200)
    15.0
    """

    ms: Table
    padded: bool = False
    spread_ms: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("ms", "spread_ms"):
            object.__setattr__(self, name, _numbers(getattr(self, name)))
        if not self.ms or not all(self.ms.values()):
            raise ValueError("no milliseconds are given: give those of one node at least")

    @classmethod
    def flat(cls, ms: Mapping[float, float]) -> Surface:
        """Return the surface with the same costs {nodes: ms} at every context."""
        return cls({math.inf: ms})

    @classmethod
    def constant(cls, ms: float) -> Surface:
        """Return the surface on which every call costs `ms`."""
        return cls({math.inf: {math.inf: ms}}, padded=True)

    def call_ms(self, nodes: float, context: float) -> float:
        """Return the milliseconds of one call; see `calls_ms`."""
        return float(self.calls_ms([nodes], context)[0])

    def calls_ms(self, nodes: Sequence[float] | np.ndarray, context: float) -> np.ndarray:
        """Return the milliseconds of calls by bilinear interpolation, [calls]; `nodes` are their
        sizes, in ascending order.

        Contexts outside the table cost as much as the nearest one in it, and sizes below the
        smallest as much as the smallest. Above the largest size, each further node costs as much
        as a node in the upper half of the sizes. Raises `ValueError` for calls without nodes, and
        for calls larger than the only size in the table.

        >>> Surface.flat({1: 10.0, 64: 10.0, 128: 20.0}).calls_ms([32, 128, 192], 9)
        array([10., 20., 30.])
        """
        contexts = list(self.ms)
        context = min(max(context, contexts[0]), contexts[-1])
        above = next(c for c in contexts if c >= context)
        below = max(c for c in contexts if c <= context)
        high = self._at(above, nodes)
        if above == below:
            return high
        low = self._at(below, nodes)
        return low + (high - low) * ((context - below) / (above - below))

    def _at(self, context: float, nodes: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the milliseconds of calls of `nodes` (ascending sizes) at a context in the
        table."""
        sizes, ms = list(self.ms[context]), list(self.ms[context].values())
        wanted, largest = np.asarray(nodes, dtype=float), sizes[-1]
        unknown = wanted[wanted < 1]  # a peer of another engine records 0
        if len(sizes) == 1:
            unknown = np.append(unknown, wanted[wanted > largest])
        if len(unknown):
            raise ValueError(
                f"a call scores {unknown[0]:.0f} nodes, the costs cover {sizes[0]:.0f} to "
                f"{largest:.0f}: measure trees of more sizes"
            )
        if self.padded:
            found = np.array(ms)[np.searchsorted(sizes[:-1], wanted)]
        else:
            found = np.interp(wanted, sizes, ms)
        if wanted[-1] <= largest:
            return found
        half = largest // 2
        each = (ms[-1] - np.interp(half, sizes, ms)) / (largest - half)
        return found + np.maximum(0.0, wanted - largest) * each


@dataclass(frozen=True)
class Footprint:
    """The bytes of a model: of all weights, of the weights that each call reads (all but the
    embedding table, of which it reads few rows), and of keys and values per cached token."""

    weight_bytes: int
    read_bytes: int
    kv_bytes_per_token: int

    def call_bytes(self, context: int) -> int:
        """Return the bytes that a call reads, which do not depend on its number of nodes."""
        return self.read_bytes + context * self.kv_bytes_per_token


def _numbers(table: Mapping) -> dict[float, dict[float, float]]:
    """Return a table with its keys converted to numbers (JSON has text keys), in ascending order.
    Raises `ValueError` for negative or infinite milliseconds, and for a call without nodes."""

    def number(key: str | float) -> float:
        value = float(key)
        return int(value) if value.is_integer() else value

    rows = {number(c): {number(n): float(ms) for n, ms in row.items()} for c, row in table.items()}
    for context, row in rows.items():
        for nodes, ms in row.items():
            if not (context >= 0 and nodes > 0 and 0 <= ms < math.inf):
                raise ValueError(f"{ms} ms for a call of {nodes} nodes after {context} tokens")
    return {context: dict(sorted(rows[context].items())) for context in sorted(rows)}
