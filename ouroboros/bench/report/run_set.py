"""Several measurements together: each summarised and named, the sweeps among them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.summary import Summary, summarise

FEW = 3
"""A sweep's jobs are named by their settings unless more than these differ."""


@dataclass(frozen=True)
class Swept:
    """A setting that varies: its name, its value in each run, and every dotted name that changes
    together with it (these count as one setting)."""

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
        rows = []
        for label, one in zip(self.labels, self.summaries, strict=True):
            facts = one.facts
            counts = [name for name, metric in one.metrics.items() if not metric.scalar]
            frame = one.frame.drop(columns=[name for name in counts if name != "verdict"])
            frame.insert(0, "run", label)
            for place, key in enumerate(("device", "nature", "incomplete"), start=1):
                frame.insert(place, key, getattr(facts, key))
            rows.append(frame.reset_index())
        found = pd.concat(rows, ignore_index=True)
        return found[["run", *(name for name in found if name != "run")]]


def run_set(measured: Sequence[Measured]) -> RunSet:
    """Summarise each measurement, find the sweeps (jobs in numbered folders), name every run."""
    jobs: dict[Path, list[int]] = {}
    for index, one in enumerate(measured):
        if one.folders[0].name.isdigit():
            jobs.setdefault(one.folders[0].parent, []).append(index)
    sweeps = {folder: members for folder, members in jobs.items() if len(members) > 1}
    names = [""] * len(measured)
    for folder, members in sweeps.items():
        prefix = f"{folder.name}: " if len(members) < len(measured) else ""
        folders = ["/".join(measured[index].folders[0].parts[-2:]) for index in members]
        found = labels([measured[index].run for index in members], folders, few=FEW)
        for index, label in zip(members, found, strict=True):
            names[index] = prefix + label
    rest = [index for index, name in enumerate(names) if not name]
    folders = [measured[index].folders[0].name for index in rest]
    found = labels([measured[index].run for index in rest], folders, few=0)
    for index, label in zip(rest, found, strict=True):
        names[index] = label
    return RunSet(measured, names, [summarise(one) for one in measured], sweeps)


def swept(configs: Sequence[Mapping]) -> list[Swept]:
    """Return what differs between configs, settings that always change together taken as one.

    A setting that a config lacks has the value None there.

    >>> both = [{"a": {"gamma": g}, "b": {"gamma": g}} for g in (2, 4)]
    >>> [(one.name, one.values) for one in swept(both)]
    [('gamma', [2, 4])]
    """
    flat = [
        pd.json_normalize(dict(one), sep=".").to_dict("records")[0] if one else {}
        for one in configs
    ]
    together: dict[tuple[int, ...], dict[str, list]] = {}
    for name in dict.fromkeys(name for one in flat for name in one):
        values = [one.get(name) for one in flat]
        if any(value != values[0] for value in values):
            pattern = tuple(values.index(value) for value in values)
            together.setdefault(pattern, {})[name] = values
    return [
        Swept(_common(list(columns)), next(iter(columns.values())), list(columns))
        for columns in together.values()
    ]


def short(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest ending of each dotted name that no other name has.

    >>> short(["decoder.a.gamma", "decoder.b.gamma", "decoder.a.topk"])
    {'decoder.a.gamma': 'a.gamma', 'decoder.b.gamma': 'b.gamma', 'decoder.a.topk': 'topk'}
    """
    found = {}
    for name in names:
        parts = name.split(".")
        endings = [".".join(parts[start:]) for start in reversed(range(len(parts)))]
        others = [other for other in names if other != name]
        found[name] = next(
            (end for end in endings if not any(f".{o}".endswith(f".{end}") for o in others)), name
        )
    return found


def labels(runs: Sequence[Mapping], folders: Sequence[str], *, few: int) -> list[str]:
    """Return a short name for each run: its task, or the settings that vary, or its folder (where
    more than `few` vary). Names are made unique by the folder."""
    tasks = [run["task"]["name"] for run in runs]
    different = swept([run.get("config", {}) for run in runs])
    brief = short([setting.name for setting in different])
    if len(set(tasks)) == len(runs):
        found = tasks
    elif 0 < len(different) <= few:
        rows = zip(*(setting.values for setting in different), strict=True)
        names = [brief[setting.name] for setting in different]
        found = [", ".join(f"{n}={v}" for n, v in zip(names, row, strict=True)) for row in rows]
    else:
        found = list(folders)
    clash = {name for name in found if found.count(name) > 1}
    return [
        f"{name} ({folder})" if name in clash else name
        for name, folder in zip(found, folders, strict=True)
    ]


def _common(names: Sequence[str]) -> str:
    """The ending that all names share, else the first two last parts; one name stays whole."""
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    shared: list[str] = []
    for ends in zip(*(reversed(one) for one in parts), strict=False):
        if len(set(ends)) > 1:
            break
        shared.insert(0, ends[0])
    lasts = list(dict.fromkeys(one[-1] for one in parts))
    return ".".join(shared) or " and ".join(lasts[:2]) + (" ..." if len(lasts) > 2 else "")
