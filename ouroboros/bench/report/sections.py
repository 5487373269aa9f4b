"""What a report over several runs consists of: sections with tables and pictures, in order.

Every output (files, Markdown, HTML) is written from these, so that they all say the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report import tables
from ouroboros.bench.report.plots import acceptance, shares, speedups, sweeps, trees
from ouroboros.bench.report.published import published_bars
from ouroboros.bench.report.run_set import RunSet, Swept, short, swept
from ouroboros.bench.report.summary import Summary

FEW_RUNS = 3
"""With more runs than this, each run's own section is closed at first."""
MOST_COLUMNS = 4
"""A sweep over more settings than this is shown by its runs' names."""


@dataclass(frozen=True)
class Table:
    """A frame of cells; `name` becomes its file's."""

    name: str
    caption: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Picture:
    """A figure; `name` becomes its file's."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A part of the report; `main` parts are open on a page from the start."""

    title: str
    main: bool = True
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    narrow: Sequence[Table] = ()
    """Tables for one column of a paper, written as LaTeX alone."""


def sections(found: RunSet) -> list[Section]:
    """Return the comparison of runs outside sweeps, the sweeps, then every run by itself."""
    alone = [index for index in range(len(found.measured)) if not found.swept(index)]
    parts = [_comparison(found, alone)] if len(alone) > 1 else []
    parts += [_sweep(found, folder, members) for folder, members in found.sweeps.items()]
    return parts + [_run(found, index) for index in range(len(found.measured))]


def slug(label: str) -> str:
    """Return a label as part of a file name.

    >>> slug("sweep: gamma=4, topk=3")
    'sweep-gamma-4-topk-3'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-") or "run"


def _run(found: RunSet, index: int) -> Section:
    label, summary = found.labels[index], found.summaries[index]
    many = len(found.labels) > 1
    prefix = f"{slug(label)}-" if many else ""
    return Section(
        f"{label}: {summary.facts.title}" if many else summary.facts.title,
        main=len(found.labels) <= FEW_RUNS,
        notes=[summary.facts.footnote + ".", *summary.notes],
        tables=[Table(prefix + one[0], one[1], one[2]) for one in tables.run_tables(summary)],
        pictures=[] if found.swept(index) else _pictures(prefix, summary),
        narrow=[Table(f"{prefix}narrow", summary.facts.title, tables.run_table(summary, "narrow"))],
    )


def _comparison(found: RunSet, members: Sequence[int]) -> Section:
    pairs = {found.labels[index]: found.summaries[index] for index in members}
    figure = speedups.comparison_dots({n: one.to_dict() for n, one in pairs.items()})
    return Section(
        f"Comparison of {len(pairs)} runs: {', '.join(pairs)}",
        notes=[f"{label}: {one.facts.title}." for label, one in pairs.items()],
        tables=_compared("comparison", {"run": list(pairs)}, list(pairs.values())),
        pictures=_drawn([("comparison", "Speedup over greedy, run by run", figure)]),
    )


def _sweep(found: RunSet, folder: Path, members: Sequence[int]) -> Section:
    summaries = [found.summaries[index] for index in members]
    settings = swept([found.measured[index].run.get("config", {}) for index in members])
    name = slug(f"sweep {folder.name}")
    what = f"{len(settings)} settings differ"
    columns: dict[str, Sequence] = {"run": [found.labels[index] for index in members]}
    if 0 < len(settings) <= MOST_COLUMNS:
        brief = short([one.name for one in settings])
        what = "; ".join(f"{one.name} = {_values(one.values)}" for one in settings)
        columns = {brief[one.name]: one.values for one in settings}
    return Section(
        f"Sweep {folder.name}: {what}",
        notes=[f"{len(members)} runs, the first: {summaries[0].facts.title}."],
        tables=_compared(name, columns, summaries),
        pictures=_drawn(_sweep_pictures(name, settings, [one.to_dict() for one in summaries])),
    )


def _sweep_pictures(
    name: str, settings: Sequence[Swept], summaries: Sequence[Mapping]
) -> list[tuple[str, str, Figure | None]]:
    """Curves over one setting, maps over two (of the decoders whose own settings vary)."""
    if len(settings) == 1:
        (one,) = settings
        figure = sweeps.sweep_curves(one.name, one.values, summaries)
        return [(name, f"Sweep of {one.name}", figure)]
    if len(settings) != 2:
        return []
    across, down = settings
    places = list(zip(across.values, down.values, strict=True))
    decoders = [decoder for decoder in summaries[0]["decoders"] if decoder != "greedy"]
    members = [*across.members, *down.members]
    own = [d for d in decoders if any(key.startswith(f"decoder.{d}.") for key in members)]
    names = (across.name, down.name)
    return [
        (
            f"{name}-{decoder}",
            f"{decoder} over {across.name} and {down.name}",
            sweeps.sweep_map(names, places, summaries, decoder),
        )
        for decoder in own or decoders
    ]


def _values(values: Sequence) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _compared(name: str, lead: Mapping[str, Sequence], summaries: Sequence[Summary]) -> list[Table]:
    found = tables.comparisons(lead, summaries).items()
    return [Table(f"{name}-{key}", caption, frame) for key, (caption, frame) in found]


def _pictures(prefix: str, run: Summary) -> list[Picture]:
    summary = run.to_dict()
    calls = "Cost per token" if summary["costs"] else "Calls per token"
    drawn = [
        ("speedup", "Speedup over greedy", speedups.speedup_bars(summary)),
        ("calls", calls, speedups.calls_bars(summary)),
        ("published", "Published and measured", published_bars(run)),
        ("histogram", "Draft tokens accepted per step", acceptance.acceptance_histograms(summary)),
        ("positions", "Acceptance by position", acceptance.acceptance_by_position(summary)),
        ("time", "Where the time goes", shares.time_shares(summary)),
        ("sources", "Who proposed the tokens", shares.source_shares(summary)),
        ("trees", "Size and depth of the proposed trees", trees.tree_shapes(summary)),
        ("reliability", "Estimated against actual acceptance", trees.reliability(summary)),
    ]
    return _drawn([(prefix + name, caption, figure) for name, caption, figure in drawn])


def _drawn(pictures: Sequence[tuple[str, str, Figure | None]]) -> list[Picture]:
    return [Picture(name, caption, figure) for name, caption, figure in pictures if figure]
