"""Choose by measured calls whether to use our matmul kernels, and int8 weights for the draft.

    python scripts/gpu/gains.py PLAIN/costs.json GAINS/costs.json OUT

prints both grids' calls side by side and writes to OUT the options that pay, on one line. The
second grid was measured with all of them: `model.engine=tuned draft_weights=int8`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from ouroboros.costs import Costs

NODES = {"target": (16, 24, 48, 64), "draft": (1, 16, 48)}  # call sizes compared
MOST = {"target": 0.98, "draft": 0.9}  # mean time / time without the options, at most
OPTIONS = {"target": "model.engine=tuned", "draft": "draft_weights=int8"}


def options(plain: Costs, gains: Costs) -> list[str]:
    """Print both measurements at the shortest context; return the options that reduce a model's
    mean time per call to the share `MOST` or less. `gains` was measured with all options."""
    chosen, context = [], min(map(float, gains.target.ms))
    print("model nodes plain-ms gains-ms")
    for role, nodes in NODES.items():
        shares = []
        for count in nodes:
            before, after = (getattr(own, role).call_ms(count, context) for own in (plain, gains))
            print(f"{role} {count} {before:.2f} {after:.2f}")
            shares.append(after / before)
        if fmean(shares) <= MOST[role]:
            chosen.append(OPTIONS[role])
    return chosen


if __name__ == "__main__":
    first, second, out = sys.argv[1:]
    Path(out).write_text(" ".join(options(Costs.load(first), Costs.load(second))) + "\n")
