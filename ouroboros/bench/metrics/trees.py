"""Proposed trees and their outcomes: sizes, sources, and estimated against actual acceptance.

Invariant: an estimate is compared with an outcome only where the target chose a token, at the
children of accepted nodes, whether the loop then kept the token or ended before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

BINS = 10


@dataclass(frozen=True)
class ProposedTree:
    """One step's tree.

    `path` holds the accepted nodes, root first, and `then` is the target's token after the last of
    them. `probability[i]` is the drafter's estimate that node i is accepted if its parent is (empty
    without estimates); `source[i]` names who proposed it; `probe` nodes were computed only.

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
        """Yield each node whose parent was accepted, and whether the target chose its token."""
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

    `nodes`, `depth` and `leaves` are means over steps, the root not counted; `sizes` and `depths`
    count steps. Of each source: tokens `proposed`, those `judged` (their parent was accepted) and
    `right`, and their mean estimated probability, `thought`.
    """
    if not trees:
        return None
    proposed: Counter[str] = Counter()
    judged: list[tuple[str, float | None, bool]] = []
    for tree in trees:
        names = [name or "unknown" for name in tree.source or [""] * len(tree.tokens)]
        estimates = tree.probability or [None] * len(tree.tokens)
        proposed.update(names[1:])
        judged += [(names[node], estimates[node], right) for node, right in tree.outcomes()]
    sources = {}
    for name, count in proposed.most_common():
        own = [(estimate, right) for source, estimate, right in judged if source == name]
        known = [estimate for estimate, _ in own if estimate is not None]
        sources[name] = {
            "proposed": count,
            "judged": len(own),
            "right": sum(right for _, right in own),
            "thought": mean(known) if known else None,
        }
    sure = [(estimate, right) for _, estimate, right in judged if estimate is not None]
    sizes, depths = [len(tree.tokens) - 1 for tree in trees], [tree.depth for tree in trees]
    return {
        "steps": len(trees),
        "nodes": mean(sizes),
        "depth": mean(depths),
        "leaves": mean(tree.leaves for tree in trees),
        "sizes": dict(sorted(Counter(sizes).items())),
        "depths": dict(sorted(Counter(depths).items())),
        "sources": sources,
        "calibration": calibration(*zip(*sure, strict=True)) if sure else None,
    }


def calibration(thought: Sequence[float], came: Sequence[bool]) -> dict:
    """Compare estimated probabilities with outcomes.

    Returns the mean log loss (natural logarithms) beside that of always estimating the mean,
    Brier's score (mean squared error), and `reliability`: for each of `BINS` equal bins that has
    any, the mean estimate and the share that came true.

    >>> found = calibration([0.9, 0.9, 0.1], [True, True, False])
    >>> round(found["brier"], 4), [row["came"] for row in found["reliability"]]
    (0.01, [0.0, 1.0])
    """
    estimate, true = np.clip(np.array(thought, float), 1e-9, 1 - 1e-9), np.array(came, float)
    constant = np.clip(true.mean(), 1e-9, 1 - 1e-9)
    bins = np.minimum((estimate * BINS).astype(int), BINS - 1)

    def log_loss(p) -> float:
        return float(-(true * np.log(p) + (1 - true) * np.log(1 - p)).mean())

    return {
        "observations": len(estimate),
        "log_loss": log_loss(estimate),
        "log_loss_of_the_mean": log_loss(constant),
        "brier": float(((estimate - true) ** 2).mean()),
        "thought": float(estimate.mean()),
        "came": float(true.mean()),
        "reliability": [
            {
                "from": int(index) / BINS,
                "thought": float(estimate[bins == index].mean()),
                "came": float(true[bins == index].mean()),
                "observations": int((bins == index).sum()),
            }
            for index in np.unique(bins)
        ],
    }
