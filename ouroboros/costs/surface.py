"""The cost of one call of a model: a `Surface` has its milliseconds by nodes and context length, a
`Footprint` the bytes that it reads.

Invariant: calls larger than those measured raise `ValueError`; only `estimate_ms` extrapolates.
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
        if len(self.ms) > 1 and math.inf in self.ms:
            raise ValueError("a surface for every context (inf) can have no other context")

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
        """Return the milliseconds of calls of ascending sizes, [nodes], by bilinear interpolation.

        Contexts below the smallest one in the table cost as much as the smallest. Raises
        `ValueError` for contexts or sizes above the largest in the table and, unless `padded`, for
        sizes below the smallest.
        """
        contexts = list(self.ms)
        if context > contexts[-1]:
            raise ValueError(
                f"the sequence has {context:.0f} tokens, the costs cover up to {contexts[-1]:.0f}: "
                "measure at a longer context"
            )
        above = next(c for c in contexts if c >= context)
        below = max((c for c in contexts if c <= context), default=above)
        high = self._at(above, nodes)
        if above == below:
            return high
        low = self._at(below, nodes)
        return low + (high - low) * ((context - below) / (above - below))

    def estimate_ms(self, nodes: int, context: float) -> np.ndarray:
        """Estimate the milliseconds of calls of 1, 2, ..., `nodes` nodes, for planning.

        Contexts beyond the longest known cost as much as the longest; calls beyond the largest
        known size grow in cost as in the upper half of the known sizes.

        >>> Surface.flat({1: 10.0, 64: 10.0, 128: 20.0}).estimate_ms(192, 9)[[31, 127, 191]]
        array([10., 20., 30.])
        """
        largest = int(min([nodes, *(max(row) for row in self.ms.values())]))
        sizes, half = np.arange(1, largest + 1), largest // 2
        known = self.calls_ms(sizes, min(context, max(self.ms)))
        each = (known[-1] - known[half - 1]) / (largest - half) if half else 0.0
        return np.append(known, known[-1] + each * np.arange(1, nodes - largest + 1))

    def _at(self, context: float, nodes: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the milliseconds of calls of `nodes` (ascending sizes) at a context in the
        table."""
        sizes, ms = list(self.ms[context]), np.array(list(self.ms[context].values()))
        least = 1 if self.padded else sizes[0]  # peers of another engine record no nodes: 0
        if nodes[-1] > sizes[-1] or nodes[0] < least:
            outside = nodes[0] if nodes[0] < least else nodes[-1]
            raise ValueError(
                f"a call scores {outside:.0f} nodes, the costs cover {sizes[0]:.0f} to "
                f"{sizes[-1]:.0f}: measure trees of more sizes"
            )
        return ms[np.searchsorted(sizes, nodes)] if self.padded else np.interp(nodes, sizes, ms)

    def extended_to(self, contexts: Mapping[int, int]) -> Surface:
        """Return a copy in which `contexts[c]`, a longer context, replaces each context c: calls up
        to that length are assumed to cost as much as at c."""
        ms, spread = (
            {contexts.get(int(context), context): row for context, row in table.items()}
            for table in (self.ms, self.spread_ms)
        )
        return Surface(ms, self.padded, spread)


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
