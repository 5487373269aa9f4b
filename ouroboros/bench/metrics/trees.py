"""Proposed trees and what became of them: sizes, sources, and estimates against outcomes.

Invariant: an estimate is held against an outcome only where the target has spoken, at the children
of accepted nodes, whether the loop then kept the token or ended before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

BINS = 10


@dataclass(frozen=True)
class ProposedTree:
    """One step's tree: `path` are the accepted nodes, root first, and `then` is the token that the
    target put after the last of them. `probability[i]` is how likely the drafter thought node i,
    its parent being accepted (empty where it did not say); `source[i]` names who proposed it;
    `probe` were computed only.

    >>> tree = ProposedTree((5, 6, 7), (-1, 0, 0), (0, 2), 9, (1.0, 0.6, 0.3))
    >>> list(tree.outcomes()), tree.depth, tree.leaves
    ([(1, False), (2, True)], 1, 2)
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    then: int
    probability: tuple[float, ...] = ()
    source: tuple[str, ...] = ()
    probe: tuple[int, ...] = ()

    def outcomes(self) -> Iterator[tuple[int, bool]]:
        """Yield each node on which the target has spoken, and whether the node has its token."""
        after = [*(self.tokens[node] for node in self.path[1:]), self.then]
        chosen = dict(zip(self.path, after, strict=True))
        for node, parent in enumerate(self.parents):
            if parent in chosen and node not in self.probe:
                yield node, self.tokens[node] == chosen[parent]

    @property
    def depth(self) -> int:
        """The depth of the deepest node."""
        depths = [0] * len(self.tokens)
        for node, parent in enumerate(self.parents[1:], start=1):
            depths[node] = depths[parent] + 1
        return max(depths)

    @property
    def leaves(self) -> int:
        """The nodes without a child; 0 where the root is alone."""
        return len(self.tokens) - len(set(self.parents) - {-1}) if len(self.tokens) > 1 else 0


def tree_metrics(trees: Sequence[ProposedTree]) -> dict | None:
    """Return sizes, sources and calibration of a decoder's trees, one tree a step; None without.

    `nodes`, `depth` and `leaves` are means over steps, the root not counted; `sizes` counts steps
    by nodes. Of each source: tokens `proposed`, those `judged` (their parent was accepted) and
    `right`, and how likely they were thought on average.
    """
    if not trees:
        return None
    judged = [(tree, node, right) for tree in trees for node, right in tree.outcomes()]
    sure = [(tree.probability[node], right) for tree, node, right in judged if tree.probability]
    return {
        "steps": len(trees),
        "nodes": mean(len(tree.tokens) - 1 for tree in trees),
        "depth": mean(tree.depth for tree in trees),
        "leaves": mean(tree.leaves for tree in trees),
        "sizes": dict(sorted(Counter(len(tree.tokens) - 1 for tree in trees).items())),
        "depths": dict(sorted(Counter(tree.depth for tree in trees).items())),
        "sources": _sources(trees, judged),
        "calibration": calibration(*zip(*sure, strict=True)) if sure else None,
    }


def calibration(thought: Sequence[float], came: Sequence[bool]) -> dict:
    """Return how well probabilities foretold outcomes: mean log loss (natural logarithms) beside
    that of always saying the mean, Brier's score (mean squared error), and `reliability`: for each
    of `BINS` equal bins that has any, the mean probability and the share that came true.

    >>> found = calibration([0.9, 0.9, 0.1], [True, True, False])
    >>> round(found["brier"], 4), [row["came"] for row in found["reliability"]]
    (0.01, [0.0, 1.0])
    """
    said, true = np.clip(np.array(thought, float), 1e-9, 1 - 1e-9), np.array(came, float)
    places = np.minimum((said * BINS).astype(int), BINS - 1)
    return {
        "observations": len(said),
        "log_loss": _log_loss(said, true),
        "log_loss_of_the_mean": _log_loss(np.clip(true.mean(), 1e-9, 1 - 1e-9), true),
        "brier": float(((said - true) ** 2).mean()),
        "thought": float(said.mean()),
        "came": float(true.mean()),
        "reliability": [
            {
                "from": int(place) / BINS,
                "thought": float(said[places == place].mean()),
                "came": float(true[places == place].mean()),
                "observations": int((places == place).sum()),
            }
            for place in np.unique(places)
        ],
    }


def _sources(trees: Sequence[ProposedTree], judged: Sequence) -> dict[str, Mapping]:
    proposed = Counter(_source(tree, n) for tree in trees for n in range(1, len(tree.tokens)))
    found: dict[str, Mapping] = {}
    for name, count in proposed.most_common():
        own = [(tree, node, right) for tree, node, right in judged if _source(tree, node) == name]
        sure = [tree.probability[node] for tree, node, _ in own if tree.probability]
        found[name] = {
            "proposed": count,
            "judged": len(own),
            "right": sum(right for *_, right in own),
            "thought": mean(sure) if sure else None,
        }
    return found


def _source(tree: ProposedTree, node: int) -> str:
    return (tree.source[node] if tree.source else "") or "unknown"


def _log_loss(said, true: np.ndarray) -> float:
    return float(-(true * np.log(said) + (1 - true) * np.log(1 - said)).mean())
