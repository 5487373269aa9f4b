"""Costs of a results folder: those recorded with its run, and those of its timed samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import NAMES, Costs


def load_costs(source: str | Path | Mapping | None) -> Costs | None:
    """Return what `Costs.load` does, with its name in `about`; of a results folder, the medians of
    its timed samples. None for None."""
    if source is None or isinstance(source, Mapping):
        return None if source is None else Costs.load(source)
    if source in NAMES or not isinstance(source, str | Path) or not Path(source).is_dir():
        costs = Costs.load(source)
        return replace(costs, about={"name": Path(source).stem, **costs.about})
    folder = ResultsFolder(source)
    if not folder.load_run().get("timing", True):
        raise ValueError(f"{source} was run with timing=false: give a folder that was timed")
    costs = Costs.of_samples([sample for sample in folder.load_samples() if not sample.error])
    return replace(costs, about={"name": Path(source).name})
