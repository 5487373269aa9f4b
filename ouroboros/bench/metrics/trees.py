"""Draft trees and their outcomes: sizes, sources, and estimated against actual acceptance.

Invariant: estimates are compared with outcomes only at children of accepted nodes, where the
target's next token is known, even if the loop truncated the output before that token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ouroboros.tree import TokenTree


class ProposedTree(NamedTuple):
    """One step: the draft `tree`, its accepted `path` (nodes, root first), and `then`, the token
    that the target chose after the path.

    >>> tree = TokenTree((5, 6, 7), (-1, 0, 0), probability=(1.0, 0.6, 0.3))
    >>> list(ProposedTree(tree, (0, 2), 9).outcomes())
    [(1, False), (2, True)]
    """

    tree: TokenTree
    path: tuple[int, ...]
    then: int

    def outcomes(self) -> Iterator[tuple[int, bool]]:
        """Yield (node, whether the target chose its token) for each node whose parent was accepted,
        except for probes, which are never accepted."""
        tokens = self.tree.tokens
        after = [*(tokens[node] for node in self.path[1:]), self.then]
        chosen = dict(zip(self.path, after, strict=True))
        for node, parent in enumerate(self.tree.parents):
            if parent in chosen and node not in self.tree.probe:
                yield node, tokens[node] == chosen[parent]


def tree_metrics(steps: Sequence[ProposedTree]) -> dict | None:
    """Return statistics of a decoder's trees, one for each step that had a draft; None without
    trees. Steps without a draft are recorded only in completions that have steps with one.

    - `steps`: the number of trees
    - `nodes`, `depth`: means over trees, the root excluded
    - `sources`: by source, the number of `proposed` nodes, of nodes whose parent was accepted
      (`parent_accepted`) and of nodes that were accepted themselves (`accepted`), and the mean
      probability estimated for nodes whose parent was accepted (`estimated`, or None)
    - `calibration`: `calibration` of nodes whose parent was accepted; None if nothing was estimated
    """
    steps = [step for step in steps if step.tree.draft_depth()]
    if not steps:
        return None
    trees = [step.tree for step in steps]
    named = [[name or "unknown" for name in tree.source or [""] * len(tree)] for tree in trees]
    outcomes = [  # source, estimate or None, whether the node is accepted
        (names[node], tree.probability[node] if tree.probability else None, accepted)
        for names, tree, step in zip(named, trees, steps, strict=True)
        for node, accepted in step.outcomes()
    ]

    def of_source(name: str, count: int) -> dict:
        own = [(estimate, accepted) for source, estimate, accepted in outcomes if source == name]
        known = [estimate for estimate, _ in own if estimate is not None]
        return {
            "proposed": count,
            "parent_accepted": len(own),
            "accepted": sum(accepted for _, accepted in own),
            "estimated": mean(known) if known else None,
        }

    proposed = Counter(name for names in named for name in names[1:])
    sure = [(estimate, accepted) for _, estimate, accepted in outcomes if estimate is not None]
    return {
        "steps": len(trees),
        "nodes": mean(len(tree) - 1 for tree in trees),
        "depth": mean(int(tree.depths().max()) for tree in trees),
        "sources": {name: of_source(name, count) for name, count in proposed.most_common()},
        "calibration": calibration(*zip(*sure, strict=True)) if sure else None,
    }


def calibration(estimates: ArrayLike, outcomes: ArrayLike) -> dict:
    """Compare estimated probabilities with outcomes.

    Returns `observations` (their number), `log_loss` (mean, natural logarithms),
    `log_loss_of_the_mean` (the log loss of always estimating the mean outcome), `estimated` (the
    mean estimate) and `actual` (the share of true outcomes).

    >>> found = calibration([0.9, 0.9, 0.1], [True, True, False])
    >>> round(found["log_loss"], 4), round(found["estimated"], 4), round(found["actual"], 4)
    (0.1054, 0.6333, 0.6667)
    """
    estimate = np.clip(np.array(estimates, float), 1e-9, 1 - 1e-9)
    true = np.array(outcomes, float)

    def log_loss(p) -> float:
        return float(-(true * np.log(p) + (1 - true) * np.log(1 - p)).mean())

    return {
        "observations": len(estimate),
        "log_loss": log_loss(estimate),
        "log_loss_of_the_mean": log_loss(np.clip(true.mean(), 1e-9, 1 - 1e-9)),
        "estimated": float(estimate.mean()),
        "actual": float(true.mean()),
    }
