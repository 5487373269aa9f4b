"""Several measurements together: each summarised and named, the sweeps among them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ouroboros.bench.report.gather import Measured, summary_of
from ouroboros.bench.report.sweep import labels

FEW = 3
"""A sweep's jobs are named by their settings unless more than these differ."""


@dataclass(frozen=True)
class RunSet:
    """Measurements with their labels, summaries and the sweeps among them (indices by folder)."""

    measured: Sequence[Measured]
    labels: Sequence[str]
    summaries: Sequence[dict]
    sweeps: Mapping[Path, Sequence[int]] = field(default_factory=dict)

    def swept(self, index: int) -> bool:
        """Say whether a run is a job of a sweep."""
        return any(index in members for members in self.sweeps.values())


def run_set(measured: Sequence[Measured]) -> RunSet:
    """Summarise each measurement, find the sweeps (jobs in numbered folders), name every run."""
    jobs: dict[Path, list[int]] = {}
    for index, one in enumerate(measured):
        if one.folders[0].name.isdigit():
            jobs.setdefault(one.folders[0].parent, []).append(index)
    found = {folder: members for folder, members in jobs.items() if len(members) > 1}
    names = [""] * len(measured)
    for folder, members in found.items():
        prefix = f"{folder.name}: " if len(members) < len(measured) else ""
        for index, label in zip(members, _labels(measured, members, few=FEW), strict=True):
            names[index] = prefix + label
    rest = [index for index, name in enumerate(names) if not name]
    for index, label in zip(rest, _labels(measured, rest, few=0), strict=True):
        names[index] = label
    return RunSet(measured, names, [summary_of(one) for one in measured], found)


def _labels(measured: Sequence[Measured], members: Sequence[int], *, few: int) -> list[str]:
    chosen = [measured[index] for index in members]
    folders = [
        "/".join(one.folders[0].parts[-2:] if few else one.folders[0].parts[-1:]) for one in chosen
    ]
    return labels([one.run for one in chosen], folders, few=few)
