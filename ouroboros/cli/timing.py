"""What calls of a pair cost, timed in full with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tqdm import tqdm

from ouroboros.bench.run.pair import Pair
from ouroboros.costs import Costs


def measured_costs(
    pair: Pair, options: Mapping, keep: Callable[[Costs], object] = lambda costs: None
) -> Costs:
    """Return `Costs.measure_grid` of a pair by the options of a profile; `keep` is given the costs
    so far after each visit."""
    total = options["visits"] * len(set(options["contexts"]))
    with tqdm(total=total, desc="calls", unit="visit", leave=False) as bar:

        def visited(costs: Costs) -> None:
            bar.update()
            keep(costs)

        return Costs.measure_grid(
            pair.models,
            nodes=options["nodes"],
            contexts=options["contexts"],
            visits=options["visits"],
            repeats=options["calls"],
            padded=options["padded"],
            on_visit=visited,
        )
