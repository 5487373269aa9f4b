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

from ouroboros.bench import compare, tables
from ouroboros.bench.plots import acceptance, published, shares, speedups, sweeps
from ouroboros.bench.report import notes
from ouroboros.bench.study import Study
from ouroboros.bench.sweep import short, varied

FEW_RUNS = 3
"""With more runs than this, each run's own section is closed at first."""
MOST_SWEPT = 2
"""Pictures of sweeps over more settings than this are not drawn; their tables are written."""


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


def sections(found: Study) -> list[Section]:
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


def _run(found: Study, index: int) -> Section:
    label, summary = found.labels[index], found.summaries[index]
    many = len(found.labels) > 1
    prefix = f"{slug(label)}-" if many else ""
    return Section(
        f"{label}: {summary['title']}" if many else summary["title"],
        main=len(found.labels) <= FEW_RUNS,
        notes=[summary["footnote"] + ".", *notes(summary)],
        tables=_tables(prefix, summary),
        pictures=[] if found.swept(index) else _pictures(prefix, summary),
    )


def _comparison(found: Study, members: Sequence[int]) -> Section:
    pairs = {found.labels[index]: found.summaries[index] for index in members}
    figure = speedups.comparison_dots(pairs)
    return Section(
        f"Comparison of {len(pairs)} runs: {', '.join(pairs)}",
        notes=["Every run's own title, settings and notes are below."],
        tables=_comparison_tables("comparison", {"run": list(pairs)}, list(pairs.values())),
        pictures=_drawn([("comparison", "Speedup over greedy, run by run", figure)]),
    )


def _sweep(found: Study, folder: Path, members: Sequence[int]) -> Section:
    summaries = [found.summaries[index] for index in members]
    lead = varied([found.measured[index].run.get("config", {}) for index in members])
    name = slug(f"sweep {folder.name}")
    pictures = []
    if len(lead) == 1:
        ((setting, values),) = lead.items()
        pictures = [(name, f"Sweep of {setting}", sweeps.sweep_curves(setting, values, summaries))]
    elif len(lead) == MOST_SWEPT:
        one, two = lead
        places = list(zip(lead[one], lead[two], strict=True))
        pictures = [
            (f"{name}-{decoder}", f"{decoder} over {one} and {two}", figure)
            for decoder in _swept_decoders(lead, summaries)
            for figure in [sweeps.sweep_map((one, two), places, summaries, decoder)]
        ]
    few = len(lead) <= 2 * MOST_SWEPT
    brief = short(list(lead))
    columns = {brief[key]: values for key, values in lead.items()} if few else {}
    columns = columns or {"run": [found.labels[index] for index in members]}
    what = "; ".join(f"{key} = {_values(values)}" for key, values in lead.items()) if few else ""
    return Section(
        f"Sweep {folder.name}: {what or f'{len(lead)} settings differ'}",
        notes=[f"{len(members)} runs, the first: {summaries[0]['title']}."],
        tables=_comparison_tables(name, columns, summaries),
        pictures=_drawn(pictures),
    )


def _swept_decoders(lead: Mapping[str, Sequence], summaries: Sequence[Mapping]) -> list[str]:
    """The decoders whose own settings vary; where none do, all but greedy."""
    names = [name for name in summaries[0]["decoders"] if name != "greedy"]
    own = [name for name in names if any(key.startswith(f"decoder.{name}.") for key in lead)]
    return own or names


def _values(values: Sequence) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _comparison_tables(name: str, lead: compare.Lead, summaries: Sequence[Mapping]) -> list[Table]:
    cells = {
        "speedup": ("Latency speedup over greedy [95 % bootstrap]", compare.speedup_cell),
        "throughput": ("Tokens per second", compare.throughput_cell),
        "calls": ("Calls per token: (target + 0.176 x draft) / new tokens", compare.calls_cell),
    }
    return [
        Table(f"{name}-{key}", caption, compare.comparison_frame(lead, summaries, cell))
        for key, (caption, cell) in cells.items()
    ]


def _tables(prefix: str, summary: Mapping) -> list[Table]:
    found = [
        Table(f"{prefix}speed", "Speed", tables.speed_frame(summary)),
        Table(f"{prefix}counts", "Calls and acceptance", tables.count_frame(summary)),
    ]
    groups, theirs = tables.group_frame(summary), tables.published_frame(summary)
    if len(groups):
        caption = "Latency speedup by group of prompts"
        found.append(Table(f"{prefix}groups", caption, groups))
    if len(theirs):
        caption = tables.published_caption(summary)
        found.append(Table(f"{prefix}published", caption, theirs))
    return found


def _pictures(prefix: str, summary: Mapping) -> list[Picture]:
    drawn = [
        ("speedup", "Speedup over greedy", speedups.speedup_bars(summary)),
        ("published", "Published and measured", published.published_bars(summary)),
        ("histogram", "Draft tokens accepted per step", acceptance.acceptance_histograms(summary)),
        ("positions", "Acceptance by position", acceptance.acceptance_by_position(summary)),
        ("time", "Where the time goes", shares.time_shares(summary)),
        ("sources", "Who proposed the tokens", shares.source_shares(summary)),
    ]
    return _drawn([(prefix + name, caption, figure) for name, caption, figure in drawn])


def _drawn(pictures: Sequence[tuple[str, str, Figure | None]]) -> list[Picture]:
    return [Picture(name, caption, figure) for name, caption, figure in pictures if figure]
