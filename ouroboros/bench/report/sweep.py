"""What differs between runs: the settings that a sweep varied, and a short name for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Swept:
    """A setting that varies: its name, its value in each run, and every dotted name that moves
    with it (settings that follow one another are one setting)."""

    name: str
    values: Sequence
    members: Sequence[str]


def varied(configs: Sequence[Mapping]) -> dict[str, list]:
    """Return the dotted settings that are not the same in all configs, with each config's value.

    A setting that a config lacks has the value None there.

    >>> varied([{"max_new": 8, "decoder": {"x": {"gamma": g}}} for g in (2, 4)])
    {'decoder.x.gamma': [2, 4]}
    """
    settings = [_flat(config) for config in configs]
    names = dict.fromkeys(name for one in settings for name in one)
    columns = {name: [one.get(name) for one in settings] for name in names}
    return {name: values for name, values in columns.items() if any(v != values[0] for v in values)}


def swept(configs: Sequence[Mapping]) -> list[Swept]:
    """Return what a sweep varied, settings that always change together taken as one.

    >>> both = [{"a": {"gamma": g}, "b": {"gamma": g}} for g in (2, 4)]
    >>> [(one.name, one.values) for one in swept(both)]
    [('gamma', [2, 4])]
    """
    together: dict[tuple[int, ...], dict[str, list]] = {}
    for name, values in varied(configs).items():
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
    """Return a short name for each run: its task, or the settings that vary, or its folder.

    The folder's where more than `few` settings vary. Names are made unique by the folder.
    """
    tasks = [run["task"]["name"] for run in runs]
    different = swept([run.get("config", {}) for run in runs])
    brief = short([setting.name for setting in different])
    if len(set(tasks)) == len(runs):
        found = tasks
    elif 0 < len(different) <= few:
        rows = zip(*(setting.values for setting in different), strict=True)
        names = [brief[setting.name] for setting in different]
        found = [", ".join(map(_equals, names, row)) for row in rows]
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


def _equals(name: str, value) -> str:
    return f"{name}={value}"


def _flat(config: Mapping) -> dict:
    return pd.json_normalize(dict(config), sep=".").to_dict("records")[0] if config else {}
