"""The one reader of costs: by name, from a file, of a timed run, or those that a run recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ouroboros.bench.metrics.timed_costs import costs_of
from ouroboros.bench.run.folder import COSTS, ResultsFolder
from ouroboros.costs.named import NAMES, named
from ouroboros.costs.surface import Costs


def load_costs(given: object) -> Costs | None:
    """Return the costs of a name, a file, a small table by hand, or a results folder's timed
    samples; None for None. Those of a name, a file or a folder say it.

    Raises `ValueError` for anything else.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        return Costs.by_hand(given)
    if not isinstance(given, str | Path):
        raise ValueError(f"costs={given}: give a name ({', '.join(NAMES)}), a file or null")
    if given in NAMES or not Path(given).is_dir():
        found = named(str(given))
        return replace(found, about={"name": Path(given).stem, **found.about})
    folder = ResultsFolder(given)
    if not folder.load_run().get("timing", True):
        raise ValueError(f"{given} was run with timing=false: give a folder that was timed")
    found = costs_of([sample for sample in folder.load_samples() if not sample.error])
    return replace(found, about={"name": Path(given).name})


def recorded_costs(folder: ResultsFolder) -> Costs | None:
    """Return the costs that were measured with a run, or that its decoders went by; None where it
    has none. Raises `ValueError` where they are damaged."""
    path = folder.path / COSTS
    return Costs.load(path) if path.exists() else None
