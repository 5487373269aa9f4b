"""The cost of one call of a model: milliseconds by nodes and context, and bytes.

Invariant: nothing is extrapolated; a call larger than any that was measured is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Table = Mapping[float, Mapping[float, float]]


@dataclass(frozen=True)
class Surface:
    """Milliseconds of one call of a model, from its start to the arrival of its choices.

    `ms[context][nodes]`: `context` counts the tokens of the sequence, the root included, and
    `nodes` those of the tree that is scored. A context of `inf` says that the cost is the same at
    every context. `padded` is for engines that fill a tree up to the next of a few sizes: a call
    costs what the next size measured costs, instead of something in between. `spread_ms`, where it
    is known, is half the distance between the quartiles, laid out as `ms`.

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
            raise ValueError("no milliseconds are given: give some for one node at least")
        if len(self.ms) > 1 and math.inf in self.ms:
            raise ValueError("a surface for every context (inf) can have no other context")

    @classmethod
    def flat(cls, ms: Mapping[float, float]) -> Surface:
        """Return {nodes: ms} as a surface that is the same at every context."""
        return cls({math.inf: ms})

    @classmethod
    def constant(cls, ms: float) -> Surface:
        """Return the surface of calls that all cost the same."""
        return cls({math.inf: {math.inf: ms}}, padded=True)

    def call_ms(self, nodes: float, context: float) -> float:
        """Return the milliseconds of one call; see `calls_ms`."""
        return float(self.calls_ms([nodes], context)[0])

    def calls_ms(self, nodes: Sequence[float], context: float) -> np.ndarray:
        """Return the milliseconds of calls of ascending sizes, bilinear between what was measured.

        A context below the smallest measured costs what that costs. Raises `ValueError` beyond what
        was measured.
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

    def batched(self, rows: int) -> Surface:
        """Return the surface of one call for several sequences, by the nodes and the context of
        each: a call costs by all nodes that it scores and all cached tokens that it reads.

        >>> Surface.flat({1: 10.0, 64: 10.0, 128: 20.0}).batched(32).call_ms(4, 100)
        20.0
        """
        table = self.ms.items()
        ms = {c / rows: {n / rows: cost for n, cost in row.items()} for c, row in table}
        return Surface(ms, self.padded)

    def _at(self, context: float, nodes: Sequence[float]) -> np.ndarray:
        """Return the milliseconds at a measured context."""
        sizes, ms = list(self.ms[context]), np.array(list(self.ms[context].values()))
        if nodes[-1] > sizes[-1] or (nodes[0] < sizes[0] and not self.padded):
            outside = nodes[0] if nodes[0] < sizes[0] else nodes[-1]
            raise ValueError(
                f"a call scores {outside:.0f} nodes, the costs cover {sizes[0]:.0f} to "
                f"{sizes[-1]:.0f}: measure trees of more sizes"
            )
        return ms[np.searchsorted(sizes, nodes)] if self.padded else np.interp(nodes, sizes, ms)

    def known_to(self, contexts: Mapping[int, int], *, padded: bool) -> Surface:
        """Return the surface with each measured context replaced by the longest that it serves."""
        ms, spread = (
            {contexts.get(int(context), context): row for context, row in table.items()}
            for table in (self.ms, self.spread_ms)
        )
        return Surface(ms, padded, spread)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model's weights (`weight_bytes`), of those that each call reads (`read_bytes`:
    without an embedding table, of which a call reads a few rows), and of a cached token."""

    weight_bytes: int
    read_bytes: int
    kv_bytes_per_token: int

    def call_bytes(self, context: int) -> int:
        """Return the bytes that any call must read, however few nodes it scores."""
        return self.read_bytes + context * self.kv_bytes_per_token


def _numbers(table: Mapping) -> dict[float, dict[float, float]]:
    """Return a table with numbers for keys, ascending (JSON's keys are text)."""

    def number(key: str | float) -> float:
        value = float(key)
        return int(value) if value.is_integer() else value

    rows = {number(c): {number(n): float(ms) for n, ms in row.items()} for c, row in table.items()}
    for context, row in rows.items():
        for nodes, ms in row.items():
            if not (context >= 0 and nodes > 0 and 0 <= ms < math.inf):
                raise ValueError(f"{ms} ms for a call of {nodes} nodes after {context} tokens")
    return {context: dict(sorted(rows[context].items())) for context in sorted(rows)}
