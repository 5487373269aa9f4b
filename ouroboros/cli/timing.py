"""What calls of a pair cost, timed with a progress bar, for the commands that time them in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tqdm import tqdm

from ouroboros.bench.run.pair import Pair
from ouroboros.costs.bandwidth import with_floor
from ouroboros.costs.calls import measure
from ouroboros.costs.surface import Costs, Surface
from ouroboros.engine.model import CachedModel


def measured_costs(
    pair: Pair, options: Mapping, keep: Callable[[Costs], object] = lambda costs: None
) -> Costs:
    """Return the surfaces of both models, their bytes and the copy bandwidth; `options` as in
    `timed`. `keep` is given what is known after each visit."""
    blank = with_floor(Costs(Surface.constant(0.0)), pair.models)

    def whole(found: Sequence[Surface]) -> Costs:
        costs = Costs.of_pair(found)
        return replace(blank, target=costs.target, draft=costs.draft)

    return whole(timed(pair.models, options, "calls", lambda found: keep(whole(found))))


def timed(
    models: Sequence[CachedModel],
    options: Mapping,
    what: str,
    on_visit: Callable[[list[Surface]], object] = lambda found: None,
) -> list[Surface]:
    """Return the costs of each model's calls on trees of `nodes` after `contexts` tokens, `visits`
    times, `calls` of each; `padded`: the engine fills trees up to these very sizes."""
    total = options["visits"] * len(set(options["contexts"]))
    with tqdm(total=total, desc=what, unit="visit", leave=False) as bar:

        def visited(found: list[Surface]) -> None:
            bar.update()
            on_visit(found)

        return measure(
            models,
            nodes=options["nodes"],
            contexts=options["contexts"],
            visits=options["visits"],
            repeats=options["calls"],
            padded=options["padded"],
            on_visit=visited,
        )


def about(run: Mapping) -> dict:
    """Return what the costs of a run's pair say of themselves."""
    kept = {key: run["provenance"][key] for key in ("machine", "versions")}
    return {"model": run["model"], **kept, "batch_size": 1}
