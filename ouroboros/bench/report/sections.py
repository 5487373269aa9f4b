"""The contents of a report over several runs: sections with tables and plots, in order.

All outputs (files, Markdown, HTML) are written from these sections, so they agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ouroboros.bench.report import tables
from ouroboros.bench.report.gather import Measured
from ouroboros.bench.report.plots import acceptance, costs, speedups, sweeps
from ouroboros.bench.report.summary import Summary, summarise
from ouroboros.bench.report.tables import Table

FEW_RUNS = 3
"""With more runs than this, each run's own section is closed at first."""
MOST_COLUMNS = 4
"""A sweep over more settings than this is shown by its runs' names."""
MOST_NAMED = 3
"""A sweep's jobs are named by their settings unless more than these differ."""
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
    ("reliability", acceptance.reliability,
     "Estimated against actual acceptance of nodes whose parent was accepted. On the dotted line "
     "estimates are right; above it the drafter was too careful. Error bars: 95 % (Wilson)."),
)  # fmt: skip
"""A run's plots: file name, function of the summary, caption."""


class Run(NamedTuple):
    """A measurement with its name in the report; `sweep` is the folder of a sweep's job."""

    label: str
    measured: Measured
    summary: Summary
    sweep: Path | None = None


class Setting(NamedTuple):
    """A setting that varies: a short name, its value in each run, and every dotted name that
    changes together with it (these count as one setting)."""

    name: str
    values: Sequence
    members: Sequence[str]


class Picture(NamedTuple):
    """A figure; `name` becomes its file's."""

    name: str
    caption: str
    figure: Figure


class Section(NamedTuple):
    """A part of the report; `main` parts are open on the page from the start."""

    title: str
    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    main: bool = True


def summarised(
    measured: Sequence[Measured], on_failure: Callable[[str], object] | None = None
) -> list[Run]:
    """Summarise each measurement, find the sweeps (jobs in numbered folders), name every run.

    `on_failure` gets a line for each measurement that cannot be summarised, and it is left out.
    """
    summaries = []
    for one in measured:
        try:
            summaries.append((one, summarise(one)))
        except Exception as error:  # whatever damaged values raise
            if on_failure is None:
                raise
            on_failure(f"{one.folders[0]} is damaged ({error}): restore the folder or leave it out")
    measured = [one for one, _ in summaries]
    jobs: dict[Path | None, list[int]] = {}
    for index, one in enumerate(measured):
        home = one.folders[0]
        jobs.setdefault(home.parent if home.name.isdigit() else None, []).append(index)
    runs: dict[int, Run] = {}
    sweeps = {folder: members for folder, members in jobs.items() if folder and len(members) > 1}
    swept_runs = {index for members in sweeps.values() for index in members}
    rest = [index for index in range(len(measured)) if index not in swept_runs]
    for folder, members in [*sweeps.items(), (None, rest)]:
        prefix = f"{folder.name}: " if folder and len(members) < len(measured) else ""
        depth, most = (2, MOST_NAMED) if folder else (1, 0)
        folders = ["/".join(measured[index].folders[0].parts[-depth:]) for index in members]
        names = labels([measured[index].run for index in members], folders, most=most)
        for index, name in zip(members, names, strict=True):
            runs[index] = Run(prefix + name, *summaries[index], folder)
    return [runs[index] for index in range(len(measured))]


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """Return every number in full: a row per run and decoder, a column per metric (histograms and
    other counts by key are left out)."""
    frames = []
    for label, _, one, _ in runs:
        facts = {key: getattr(one.facts, key) for key in ("device", "nature", "incomplete")}
        counts = [m.name for m in one.metrics.values() if not m.scalar and m.name != "verdict"]
        cells = one.frame.drop(columns=counts).reset_index()
        first = pd.DataFrame({"run": label, **facts}, index=cells.index)
        frames.append(pd.concat([first, cells], axis=1))
    return pd.concat(frames, ignore_index=True)


def swept(configs: Sequence[Mapping]) -> list[Setting]:
    """Return what differs between configs, settings that always change together taken as one.

    A setting that a config lacks has the value None there. A name is the shortest ending that all
    members share and no other setting has, else the last parts of two members.

    >>> both = [{"a": {"gamma": g}, "b": {"gamma": g}} for g in (2, 4)]
    >>> [(one.name, one.values) for one in swept(both)]
    [('gamma', [2, 4])]
    """
    flat: list[dict] = [
        next(iter(pd.json_normalize(dict(c)).to_dict("records")), {}) for c in configs
    ]
    together: dict[tuple[int, ...], dict[str, list]] = {}
    for name in dict.fromkeys(name for one in flat for name in one):
        values = [one.get(name) for one in flat]
        pattern = tuple(map(values.index, values))
        if any(pattern):
            together.setdefault(pattern, {})[name] = values
    settings = []
    for members in together.values():
        others = [f".{name}" for own in together.values() for name in own if own is not members]
        first, values = next(iter(members.items()))
        lasts = list(dict.fromkeys(name.split(".")[-1] for name in members))
        several = " and ".join(lasts[:2]) + " ..." * (len(lasts) > 2)
        ends = [first[dot.end() :] for dot in re.finditer(r"^|\.", first)][::-1]
        unique = (
            end
            for end in ends
            if all(f".{name}".endswith(f".{end}") for name in members)
            and not any(name.endswith(f".{end}") for name in others)
        )
        settings.append(Setting(next(unique, several), values, list(members)))
    return settings


def labels(runs: Sequence[Mapping], folders: Sequence[str], *, most: int) -> list[str]:
    """Return a short name for each run.json: its task, or the settings that vary, or its folder
    (where more than `most` vary). Names are made unique by the folder."""
    names, different = list(folders), swept([run.get("config", {}) for run in runs])
    if len(tasks := {run["task"]["name"]: None for run in runs}) == len(runs):
        names = list(tasks)
    elif 0 < len(different) <= most:
        columns = ([f"{one.name}={value}" for value in one.values] for one in different)
        names = [", ".join(row) for row in zip(*columns, strict=True)]
    pairs = zip(names, folders, strict=True)
    return [f"{name} ({folder})" if names.count(name) > 1 else name for name, folder in pairs]


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the comparison of runs outside sweeps, the sweeps, then every run by itself."""
    alone = [run for run in runs if not run.sweep]
    parts = [_comparison(alone)] if len(alone) > 1 else []
    for folder in dict.fromkeys(run.sweep for run in runs if run.sweep):
        parts.append(_sweep(folder, [run for run in runs if run.sweep == folder]))
    for label, _, summary, sweep in runs:
        name = label if len(runs) > 1 else ""
        part = run_section(summary, label=name, plots=() if sweep else PLOTS)
        parts.append(part._replace(main=len(runs) <= FEW_RUNS))
    return parts


def run_section(summary: Summary, *, label: str = "", plots: Sequence[tuple] = ()) -> Section:
    """Return a run's tables and `plots`, as `PLOTS`; `label` tells it from the report's others."""
    title, prefix = summary.facts.title, ""
    if label:
        title, prefix = f"{label}: {title}", f"{slug(label)}-"
    pictures = []
    for name, draw, caption in plots:
        if figure := draw(summary):
            bars = speedups.error_bars([summary]) if name in ("speedup", "cost") else ""
            pictures.append(Picture(prefix + name, caption + bars, figure))
    shown = [table._replace(name=prefix + table.name) for table in tables.run_tables(summary)]
    return Section(title, [f"{summary.facts.footnote}.", *summary.notes], shown, pictures)


def slug(label: str) -> str:
    """Return a label as part of a file name.

    >>> slug("sweep: gamma=4, topk=3")
    'sweep-gamma-4-topk-3'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", label).strip("-") or "run"


def _comparison(runs: Sequence[Run]) -> Section:
    summaries = {run.label: run.summary for run in runs}
    parts = {label: summary.facts.title_parts for label, summary in summaries.items()}
    shared = [part for part in parts[runs[0].label] if all(part in p for p in parts.values())]
    own = {label: [part for part in all_ if part not in shared] for label, all_ in parts.items()}
    notes = [f"{label}: {' · '.join(parts)}" for label, parts in own.items() if parts]
    figure = speedups.speedup_dots(summaries)
    caption = "Speedup over greedy, run by run." + speedups.error_bars(summaries.values())
    return Section(
        f"Comparison of {len(runs)} runs: {', '.join(summaries)}",
        [" · ".join(shared), *notes] if shared else notes,
        _compared("comparison", {"run": list(summaries)}, list(summaries.values())),
        [Picture("comparison", caption, figure)] if figure else [],
    )


def _sweep(folder: Path, runs: Sequence[Run]) -> Section:
    """Lines over one setting; over two, a map of each decoder whose own settings vary."""
    summaries = [run.summary for run in runs]
    settings = swept([run.measured.run.get("config", {}) for run in runs])
    name, what = slug(folder.name), f"{len(settings)} settings"
    columns: dict[str, Sequence] = {"run": [run.label for run in runs]}
    if 0 < len(settings) <= MOST_COLUMNS:
        columns = {one.name: one.values for one in settings}
        values = (f"{n} = {', '.join(dict.fromkeys(map(str, v)))}" for n, v in columns.items())
        what = "; ".join(values)
    drawn: list[tuple[str, str, Figure | None]] = []
    if len(settings) == 1:
        figure = sweeps.sweep_lines(settings[0].name, settings[0].values, summaries)
        drawn = [(name, f"Sweep of {settings[0].name}." + speedups.error_bars(summaries), figure)]
    elif len(settings) == 2:
        across, down = settings
        places = list(zip(across.values, down.values, strict=True))
        decoders = [decoder for decoder in summaries[0].frame.index if decoder != "greedy"]
        members = [*across.members, *down.members]
        own = [d for d in decoders if any(m.startswith(f"decoder.{d}.") for m in members)]
        text = (
            f"over {across.name} and {down.name}. Lighter is better; framed: the best; dashed: no "
            "worse by its 95 % interval, which the colours span at least."
        )
        for decoder in own or decoders:
            figure = sweeps.sweep_map((across.name, down.name), places, summaries, decoder)
            drawn.append((f"{name}-{decoder}", f"{decoder} {text}", figure))
    return Section(
        f"Sweep of {what} ({folder.name})",
        [f"{len(runs)} runs, the first: {summaries[0].facts.title}."],
        _compared(name, columns, summaries),
        [Picture(name, caption, figure) for name, caption, figure in drawn if figure],
    )


def _compared(name: str, lead: Mapping[str, Sequence], summaries: Sequence[Summary]) -> list[Table]:
    found = tables.comparisons(lead, summaries)
    return [table._replace(name=f"{name}-{table.name}") for table in found]
