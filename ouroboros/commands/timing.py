"""What calls of a pair cost, timed with a progress bar, for the commands that time them in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tqdm import tqdm

from ouroboros.bench.run.pair import Pair
from ouroboros.costs.bandwidth import with_floor
from ouroboros.costs.calls import measure
from ouroboros.costs.surface import Costs, Surface
from ouroboros.engine.model import CachedModel


def measured_costs(pair: Pair, options: Mapping) -> Costs:
    """Return the surfaces of both models, their bytes and the copy bandwidth; `options` as in
    `timed`."""
    return with_floor(Costs.of_pair(timed(pair.models, options, "calls")), pair.models)


def timed(models: Sequence[CachedModel], options: Mapping, what: str) -> list[Surface]:
    """Return the costs of each model's calls on trees of `nodes` after `contexts` tokens, `visits`
    times, `calls` of each; `padded`: the engine fills trees up to these very sizes."""
    total = options["visits"] * len(set(options["contexts"]))
    with tqdm(total=total, desc=what, unit="visit", leave=False) as bar:
        return measure(
            models,
            nodes=options["nodes"],
            contexts=options["contexts"],
            visits=options["visits"],
            repeats=options["calls"],
            padded=options["padded"],
            on_visit=bar.update,
        )


def about(run: Mapping) -> dict:
    """Return what the costs of a run's pair say of themselves."""
    kept = {key: run["provenance"][key] for key in ("machine", "versions")}
    return {"model": run["model"], **kept, "batch_size": 1}
