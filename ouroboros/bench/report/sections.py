"""The contents of a report over several runs: sections with tables and plots, in order.

All outputs (files, Markdown, HTML) are written from these sections, so they agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report import tables
from ouroboros.bench.report.plots import acceptance, costs, speedups, sweeps
from ouroboros.bench.report.run_set import RunSet, swept
from ouroboros.bench.report.summary import Summary

FEW_RUNS = 3
"""With more runs than this, each run's own section is closed at first."""
MOST_COLUMNS = 4
"""A sweep over more settings than this is shown by its runs' names."""
PLOTS = (
    ("speedup", speedups.speedup_bars, "Speedup over greedy."),
    ("cost", speedups.cost_bars, "Cost per token."),
    ("histogram", acceptance.acceptance_histograms,
     "Draft tokens accepted per step. Every step also yields one token of the target."),
    ("positions", acceptance.acceptance_by_position,
     "Acceptance by position in the draft, of the steps that drafted so far. Positions that fewer "
     f"than {acceptance.FEWEST_STEPS} steps reached are left out."),
    ("time", costs.time_shares, "Where the time goes. Numbers: % of the time in steps."),
    ("sources", acceptance.source_shares, "Who proposed the tokens. Numbers: % of new tokens."),
    ("trees", acceptance.tree_shapes,
     "Size and depth of the proposed trees. The root, which is accepted text, is not counted."),
    ("reliability", acceptance.reliability,
     "Estimated against actual acceptance of nodes whose parent was accepted. On the dotted line "
     "estimates are right; above it the drafter was too careful. Error bars: 95 % (Wilson)."),
)  # fmt: skip
"""A run's plots: file name, function of the summary, caption."""


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
    """A part of the report; `main` parts are open on the page from the start, `narrow` tables (for
    one column of a paper) are written as LaTeX only."""

    title: str
    main: bool = True
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


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
    captioned = tables.run_tables(summary)
    pictures = [(name, text, draw(summary)) for name, draw, text in PLOTS]
    return Section(
        f"{label}: {summary.facts.title}" if many else summary.facts.title,
        main=len(found.labels) <= FEW_RUNS,
        notes=[f"{summary.facts.footnote}.", *summary.notes],
        tables=[Table(prefix + name, caption, frame) for name, caption, frame in captioned],
        pictures=[
            Picture(
                prefix + name,
                text + _error_bars([summary] if name in ("speedup", "cost") else []),
                figure,
            )
            for name, text, figure in pictures
            if figure and not found.swept(index)
        ],
    )


def _error_bars(summaries: Sequence[Summary]) -> str:
    """What error bars are, if the runs have any: intervals need two prompts."""
    known = [one.frame.filter(regex=r"\.low$").notna().any(axis=None) for one in summaries]
    return " Error bars: 95 % bootstrap over prompts." if any(known) else ""


def _comparison(found: RunSet, members: Sequence[int]) -> Section:
    runs = {found.labels[index]: found.summaries[index] for index in members}
    figure = speedups.speedup_dots(runs)
    caption = "Speedup over greedy, run by run." + _error_bars(list(runs.values()))
    parts = {label: summary.facts.title_parts for label, summary in runs.items()}
    shared = [part for part in next(iter(parts.values())) if all(part in p for p in parts.values())]
    own = {label: [part for part in all_ if part not in shared] for label, all_ in parts.items()}
    return Section(
        f"Comparison of {len(runs)} runs: {', '.join(runs)}",
        notes=[
            *([" · ".join(shared)] if shared else []),
            *(f"{label}: {' · '.join(parts)}" for label, parts in own.items() if parts),
        ],
        tables=_compared("comparison", {"run": list(runs)}, list(runs.values())),
        pictures=[Picture("comparison", caption, figure)] if figure else [],
    )


def _sweep(found: RunSet, folder: Path, members: Sequence[int]) -> Section:
    """Lines over one setting; over two, a map of each decoder whose own settings vary."""
    summaries = [found.summaries[index] for index in members]
    settings = swept([found.measured[index].run.get("config", {}) for index in members])
    name, what = slug(folder.name), f"{len(settings)} settings"
    columns: dict[str, Sequence] = {"run": [found.labels[index] for index in members]}
    if 0 < len(settings) <= MOST_COLUMNS:
        values = [", ".join(dict.fromkeys(map(str, one.values))) for one in settings]
        what = "; ".join(f"{s.name} = {v}" for s, v in zip(settings, values, strict=True))
        columns = {one.name: one.values for one in settings}
    pictures = []
    if len(settings) == 1:
        (one,) = settings
        figure = sweeps.sweep_lines(one.name, one.values, summaries)
        pictures = [Picture(name, f"Sweep of {one.name}." + _error_bars(summaries), figure)]
    elif len(settings) == 2:
        places = list(zip(*(one.values for one in settings), strict=True))
        names = (settings[0].name, settings[1].name)
        decoders = [decoder for decoder in summaries[0].frame.index if decoder != "greedy"]
        own = [
            d
            for d in decoders
            if any(key.startswith(f"decoder.{d}.") for one in settings for key in one.members)
        ]
        text = f"over {names[0]} and {names[1]}. Lighter is better; framed: the best. "
        text += "The colours span at least its 95 % interval."
        pictures = [
            Picture(f"{name}-{d}", f"{d} {text}", sweeps.sweep_map(names, places, summaries, d))
            for d in own or decoders
        ]
    return Section(
        f"Sweep of {what} ({folder.name})",
        notes=[f"{len(members)} runs, the first: {summaries[0].facts.title}."],
        tables=_compared(name, columns, summaries),
        pictures=[picture for picture in pictures if picture.figure],
    )


def _compared(name: str, lead: Mapping[str, Sequence], summaries: Sequence[Summary]) -> list[Table]:
    found = tables.comparisons(lead, summaries).items()
    return [Table(f"{name}-{key}", caption, frame) for key, (caption, frame) in found]
