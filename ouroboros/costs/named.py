"""Costs by name or file, for where nothing is measured here and now.

"epyc" is a few cores of a CPU, where a call of 64 nodes takes 2.5 times as long as one of one;
"flat" has the shape of a GPU's, where it takes as long. Both hold at every context.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ouroboros.costs.surface import Costs

NAMES = ("epyc", "flat")
UNTIMED = "epyc"  # what a run whose seconds mean nothing goes by


def named(name: str) -> Costs:
    """Return the costs of a name, or of a file. Raises `ValueError` for what is neither."""
    if name in NAMES:
        return _shipped(name)
    if not Path(name).is_file():
        raise ValueError(f"costs {name!r} are no file, and no name among {', '.join(NAMES)}")
    return Costs.load(Path(name))


@cache
def _shipped(name: str) -> Costs:
    return Costs.load(Path(__file__).with_name(f"{name}.yaml"))
