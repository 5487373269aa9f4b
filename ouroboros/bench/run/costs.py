"""Costs that a command is given: by name, in a file, or of the samples of a timed run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ouroboros.bench.measure.timed_costs import costs_of
from ouroboros.bench.run.store import ResultsFolder
from ouroboros.costs.named import NAMES, named
from ouroboros.costs.surface import Costs


def load_costs(given: str | None) -> Costs | None:
    """Return the costs of a name, a file or a results folder's timed samples; None for None. They
    say their name.

    Raises `ValueError` for anything else.
    """
    if given is None:
        return None
    if given in NAMES or not Path(given).is_dir():
        found = named(given)
        return replace(found, about={"name": Path(given).stem, **found.about})
    folder = ResultsFolder(given)
    if not folder.load_run().get("timing", True):
        raise ValueError(f"{given} was run with timing=false: give a folder that was timed")
    found = costs_of([sample for sample in folder.load_samples() if not sample.error])
    return replace(found, about={"name": Path(given).name})
