"""Several measurements together: each summarised and named, the sweeps among them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.summary import Summary, summarise

FEW = 3
"""A sweep's jobs are named by their settings unless more than these differ."""


@dataclass(frozen=True)
class Swept:
    """A setting that varies: a short name, its value in each run, and every dotted name that
    changes together with it (these count as one setting)."""

    name: str
    values: Sequence
    members: Sequence[str]


@dataclass(frozen=True)
class RunSet:
    """Measurements with their labels, summaries and the sweeps among them (indices by folder)."""

    measured: Sequence[Measured]
    labels: Sequence[str]
    summaries: Sequence[Summary]
    sweeps: Mapping[Path, Sequence[int]] = field(default_factory=dict)

    def swept(self, index: int) -> bool:
        """Say whether a run is a job of a sweep."""
        return any(index in members for members in self.sweeps.values())

    def numbers(self) -> pd.DataFrame:
        """Return every number in full: a row per run and decoder, a column per metric (histograms
        and other counts by key are left out)."""
        frames = []
        for label, one in zip(self.labels, self.summaries, strict=True):
            facts = {key: getattr(one.facts, key) for key in ("device", "nature", "incomplete")}
            counts = [m.name for m in one.metrics.values() if not m.scalar and m.name != "verdict"]
            numbers = one.frame.drop(columns=counts).reset_index()
            first = pd.DataFrame({"run": label, **facts}, index=numbers.index)
            frames.append(pd.concat([first, numbers], axis=1))
        return pd.concat(frames, ignore_index=True)


def run_set(measured: Sequence[Measured]) -> RunSet:
    """Summarise each measurement, find the sweeps (jobs in numbered folders), name every run."""
    jobs: dict[Path, list[int]] = {}
    for index, one in enumerate(measured):
        if one.folders[0].name.isdigit():
            jobs.setdefault(one.folders[0].parent, []).append(index)
    sweeps = {folder: members for folder, members in jobs.items() if len(members) > 1}
    swept_runs = {index for members in sweeps.values() for index in members}
    rest = [index for index in range(len(measured)) if index not in swept_runs]
    names: dict[int, str] = {}
    for folder, members in [*sweeps.items(), (None, rest)]:
        prefix = f"{folder.name}: " if folder and len(members) < len(measured) else ""
        depth, few = (2, FEW) if folder else (1, 0)
        folders = ["/".join(measured[index].folders[0].parts[-depth:]) for index in members]
        found = labels([measured[index].run for index in members], folders, few=few)
        names |= {i: prefix + label for i, label in zip(members, found, strict=True)}
    ordered = [names[index] for index in range(len(measured))]
    return RunSet(measured, ordered, [summarise(one) for one in measured], sweeps)


def swept(configs: Sequence[Mapping]) -> list[Swept]:
    """Return what differs between configs, settings that always change together taken as one.

    A setting that a config lacks has the value None there. A name is the shortest ending that all
    members share and no other setting has, else the last parts of two members.

    >>> both = [{"a": {"gamma": g}, "b": {"gamma": g}} for g in (2, 4)]
    >>> [(one.name, one.values) for one in swept(both)]
    [('gamma', [2, 4])]
    """
    flat: list[dict[Any, Any]] = [
        pd.json_normalize(dict(one), sep=".").to_dict("records")[0] if one else {}
        for one in configs
    ]
    together: dict[tuple[int, ...], dict[str, list]] = {}
    for name in dict.fromkeys(name for one in flat for name in one):
        values = [one.get(name) for one in flat]
        if any(value != values[0] for value in values):
            pattern = tuple(values.index(value) for value in values)
            together.setdefault(pattern, {})[name] = values
    every = [name for columns in together.values() for name in columns]
    return [
        Swept(_short(list(columns), every), next(iter(columns.values())), list(columns))
        for columns in together.values()
    ]


def labels(runs: Sequence[Mapping], folders: Sequence[str], *, few: int) -> list[str]:
    """Return a short name for each run: its task, or the settings that vary, or its folder (where
    more than `few` vary). Names are made unique by the folder."""
    tasks = [run["task"]["name"] for run in runs]
    different = swept([run.get("config", {}) for run in runs])
    found = list(folders)
    if len(set(tasks)) == len(runs):
        found = tasks
    elif 0 < len(different) <= few:
        columns = ([f"{one.name}={value}" for value in one.values] for one in different)
        found = [", ".join(row) for row in zip(*columns, strict=True)]
    return [
        f"{name} ({folder})" if found.count(name) > 1 else name
        for name, folder in zip(found, folders, strict=True)
    ]


def _short(members: Sequence[str], every: Sequence[str]) -> str:
    others = [name for name in every if name not in members]
    parts = members[0].split(".")
    for start in reversed(range(len(parts))):
        end = ".".join(parts[start:])
        if not all(f".{name}".endswith(f".{end}") for name in members):
            break
        if not any(f".{name}".endswith(f".{end}") for name in others):
            return end
    lasts = list(dict.fromkeys(name.split(".")[-1] for name in members))
    return " and ".join(lasts[:2]) + (" ..." if len(lasts) > 2 else "")
