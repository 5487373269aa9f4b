"""Coordinate search over a decoder's settings, from random starts, in the ranges of conf/tune."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from ouroboros.conf import FOLDER

SPACES: dict[str, dict[str, list]] = {
    path.stem: yaml.safe_load(path.read_text("utf-8"))
    for path in sorted((FOLDER / "tune").glob("*.yaml"))
}
"""The search space of each decoder, from conf/tune."""


def search(
    score: Callable[[dict], float],
    space: Mapping[str, Sequence],
    *,
    start: Mapping[str, Any],
) -> dict:
    """Return the settings with the highest score found by a coordinate search in `space`, the
    values that each setting may have.

    Each round takes every setting in turn and tries all its values, with the others fixed. The
    search ends when a round improves nothing. Of equal scores the first found wins.

    >>> search(lambda own: -abs(own["a"] - own["b"]) + 2 * own["b"],
    ...        {"a": [0, 1, 2], "b": [0, 1, 2]}, start={"a": 0, "b": 0})
    {'a': 2, 'b': 2}
    """
    best, last = dict(start), None
    while best != last:
        last = best
        for key, values in space.items():
            best = max([best, *({**best, key: value} for value in values)], key=score)
    return best


def random_settings(space: Mapping[str, Sequence], count: int, seed: str) -> list[dict]:
    """Return {} (the configured settings) and `count - 1` different random settings of a space; if
    it has fewer, all of them."""
    found: list[dict] = [{}]
    rng = random.Random(seed)
    while len(found) < min(count, 1 + math.prod(map(len, space.values()))):
        drawn = {key: rng.choice(values) for key, values in space.items()}
        if drawn not in found:
            found.append(drawn)
    return found
