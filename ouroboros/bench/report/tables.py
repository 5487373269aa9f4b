"""Make tables from summaries: select columns of the DataFrame and format its cells.

A cell is the text that a reader sees ("3.04x [2.15, 3.86]", "-" if unknown); `report.numbers` has
full precision. A metric's registry entry names the tables that show it as a column. Columns without
any value are left out.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as TerminalTable

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.metrics.metrics import METRICS, Metric
from ouroboros.bench.metrics.sample import METHOD, PLAIN
from ouroboros.bench.report.summary import Summary, interval_of

CAPTIONS = {
    "default": "Results",
    "speed": "Speed",
    "lead": "Each decoder against Ouroboros, paired by prompt; above 1, Ouroboros is ahead",
    "time": "Time and memory",
    "counts": "Calls and acceptance",
}
"""The captions of a run's tables, in order, by the names that metrics list in `tables`."""
NOTES = """\
[low, high]: 95 % intervals over prompts, paired where two decoders are compared (bootstrap; for \
yes-or-no scores Wilson's interval). Warm-up is excluded; decoders alternate by prompt or batch."""
LATEX_COLUMNS, LATEX_CAPTION = 7, 200
"""The most columns of a LaTeX table, and the most characters of its caption."""
BOLD = "textbf:--rwrap;"


class Table(NamedTuple):
    """A table's cells, its caption and `name`, the stem of its file names. `better` has the columns
    of values, and whether "higher" or "lower" values are better ("": neither)."""

    name: str
    caption: str
    frame: pd.DataFrame
    better: Mapping[str, str] = {}


def cell(metric: Metric, row: Mapping | pd.Series) -> str:
    """Return a metric in a row of `Summary.frame` as text with its interval (or the number of
    prompts, if they are few); "-" if unavailable."""
    if isinstance(value := row.get(metric.name), str):
        return value
    interval = None if value is None else interval_of(row, metric.name)
    if interval is None:
        return "-"
    low, high = (end and end * metric.scale for end in (interval.low, interval.high))
    shown = Interval(interval.value * metric.scale, low, high, interval.prompts)
    return shown.text(metric.digits, metric.suffix)


def columns(summary: Summary, table: str) -> list[Metric]:
    """Return the metrics that a run's table shows: those with a value for at least one decoder.

    The default table shows at most one task score. It leaves out a metric if another metric named
    in its `instead_of` is available.
    """
    known = {name for name in summary.metrics if _known(summary.frame, name)}
    shown = [m for n, m in summary.metrics.items() if n in known and table in m.tables.split()]
    if table == "default":
        scores = [m for m in shown if m.name not in METRICS]
        shown = [m for m in shown if not known & set(m.instead_of.split()) and m not in scores[1:]]
    return shown


def run_table(summary: Summary, table: str) -> Table:
    """Return a run's table (a key of `CAPTIONS`), a row per decoder; empty without any value."""
    shown, rows = columns(summary, table), []
    for decoder, row in summary.frame.iterrows():
        cells = {metric.heading: cell(metric, row) for metric in shown}
        if set(cells.values()) <= {"-"} or (table == "lead" and decoder == METHOD):
            continue
        if table == "lead":
            lead = interval_of(row, shown[0].name)
            cells["Ouroboros is"] = lead.significance if lead else "-"
        rows.append({"decoder": str(decoder), **cells})
    caption = CAPTIONS[table]
    if table == "counts" and summary.facts.costs:
        caption += f" (cost/token by {summary.facts.costs})"
    better = {metric.heading: metric.better for metric in shown}
    return Table(table, caption, pd.DataFrame(rows), better)


def run_tables(summary: Summary) -> list[Table]:
    """Return a run's non-empty tables."""
    found = [run_table(summary, name) for name in CAPTIONS]
    found += group_tables(summary)
    found.append(published_table(summary))
    return [one for one in found if one.frame.shape[1] > 1]


def group_tables(summary: Summary) -> list[Table]:
    """Return a list of one table: speedups, with a row per group of prompts and a column per
    decoder. The list is empty without groups or speedups."""
    shown = [m for m in METRICS.shown_in("groups") if m.name in summary.groups]
    for metric in [metric for metric in shown if _known(summary.groups, metric.name)][:1]:
        groups = summary.groups.groupby(level="group", sort=False)
        parts = {str(group): part.droplevel("group") for group, part in groups}
        counts = [f"{part[f'{metric.name}.prompts'].max():.0f}" for part in parts.values()]
        lead = {"group": list(parts), "prompts": counts}
        caption = f"{metric.heading} by group of prompts"
        return [_across("groups", caption, metric, lead, parts.values())]
    return []


def published_table(summary: Summary) -> Table:
    """Return published tokens/s and speedups over greedy beside the measured ones; empty if the
    run's config has none."""
    facts, frame, published = summary.facts, summary.frame, summary.facts.published or {}
    theirs, rows = published.get("tokens_per_s", {}), []
    for name in dict.fromkeys([*theirs, *frame.index]) if theirs else ():
        row: Mapping | pd.Series = frame.loc[name] if name in frame.index else {}
        speedup = theirs[name] / theirs[PLAIN] if {name, PLAIN} <= theirs.keys() else None
        ratio = row["latency_speedup"] / speedup if len(row) and speedup else float("nan")
        cells = {
            "published tokens/s": f"{theirs[name]:.1f}" if name in theirs else "-",
            "published speedup": f"{speedup:.2f}x" if speedup else "-",
            "measured tokens/s": cell(METRICS["output_throughput"], row),
            "measured speedup": cell(METRICS["latency_speedup"], row),
            "speedup / published": "-" if pd.isna(ratio) else f"{ratio:.2f}",
        }
        rows.append({"decoder": name, **cells})
    nature = "" if facts.nature == "model" else f" (a {facts.nature})"
    caption = (
        f"Published ({published.get('source')}, on {published.get('hardware')}) and measured"
        f"{nature} on {facts.device}; speedups are over greedy"
    )
    return Table("published", caption, pd.DataFrame(rows))


def comparisons(
    lead: Mapping[str, Sequence], summaries: Sequence[Summary], prefix: str = ""
) -> list[Table]:
    """Return a table per metric that compares the runs: a row per run, a column per decoder.

    The first columns, `lead`, identify the runs: {heading: [a value per run]}. The tables are named
    `prefix` + metric.
    """
    costs = dict.fromkeys(one.facts.costs for one in summaries if one.facts.costs)
    counts = [f"{s.facts.prompts}{' (incomplete)' * s.facts.incomplete}" for s in summaries]
    frames, found = [one.frame for one in summaries], []
    for metric in METRICS.shown_in("comparison"):
        if any(_known(frame, metric.name) for frame in frames):
            by = f" By {', '.join(costs)}." if metric.priced else ""
            caption = f"{metric.heading}: {metric.definition}{by}"
            own = {**lead, "prompts": counts}
            found.append(_across(prefix + metric.name, caption, metric, own, frames))
    return found


def terminal_tables(summary: Summary, width: int = 100) -> list[TerminalTable]:
    """Return the tables that commands print: one with at most seven columns (and the task's score),
    and one with speedups by group of prompts, if there are groups.

    If lines are longer than `width`, intervals go below their values. If that is not enough, the
    default table leaves out accepted/step, then TTFT; the table by group has values alone, and
    leaves out the slowest decoders.
    """
    frame = run_table(summary, "default").frame
    optional = [METRICS[name].heading for name in ("accepted_per_step", "ttft_ms")]
    found = [_fitting(frame, [name for name in optional if name in frame], width)]
    for table in group_tables(summary):
        frame = table.frame.replace(r" (\[|\(n =).*", "", regex=True)
        found.append(_fitting(frame, [*map(str, frame)][:2:-1], width))
    return found


def _fitting(frame: pd.DataFrame, optional: Sequence[str], width: int) -> TerminalTable:
    """Return a frame as a table for the terminal: whole, or with intervals below their values, or
    also without the first of the `optional` columns, until its lines fit into `width`."""
    broken = frame.replace(r" (\[|\(n =)", r"\n\1", regex=True)
    fewer = (broken.drop(columns=list(optional[:count])) for count in range(len(optional) + 1))
    for table in map(terminal_table, (frame, *fewer)):
        if Console(width=1000).measure(table).maximum <= width:
            break
    return table


def terminal_table(shown: pd.DataFrame) -> TerminalTable:
    """Return a frame of text as a table for the terminal; only the first column is left-aligned."""
    table = TerminalTable(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False
    )
    for place, heading in enumerate(shown):
        table.add_column(str(heading), justify="right" if place else "left", overflow="fold")
    for row in shown.itertuples(index=False):
        table.add_row(*row)
    return table


def legend(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return {heading: definition} of all metrics that the runs' tables show."""
    shown = (metric for one in summaries for table in CAPTIONS for metric in columns(one, table))
    return {metric.heading: metric.definition for metric in shown}


def as_text(frame: pd.DataFrame, style: str = "github") -> str:
    """Return a frame as text in one of tabulate's styles; only the first column is left-aligned."""
    align = ["left", *["right"] * (frame.shape[1] - 1)] if len(frame) else None
    return frame.to_markdown(index=False, tablefmt=style, disable_numparse=True, colalign=align)


def write_latex(table: Table, path: Path, *, about: str) -> None:
    """Write a table as LaTeX (with \\usepackage{booktabs}), the best value of each column in bold.

    A table of more than `LATEX_COLUMNS` columns becomes several, each with the columns that
    identify its rows. The caption is the table's (up to a colon) and `about`, cut at
    `LATEX_CAPTION` characters; the label is tab:<file name>, with -2, -3 for further tables.
    """
    keys = [name for name in table.frame if name not in table.better] if table.better else []
    values: Any = [name for name in table.frame if name not in keys]
    parts = math.ceil(len(values) / max(1, LATEX_COLUMNS - len(keys)))
    caption = textwrap.shorten(
        f"{table.caption.partition(': ')[0]}. {about}", LATEX_CAPTION, placeholder=" ..."
    )
    found = []
    for number, names in enumerate(np.array_split(values, parts), 1):
        frame = table.frame[[*keys, *names]]
        shown = frame.style.format(escape="latex").format_index(escape="latex", axis=1)
        for name in map(str, names):
            shown = shown.apply(bold_best, better=table.better.get(name, ""), subset=[name])
        text = shown.hide(axis="index").to_latex(
            hrules=True,
            caption=re.sub(r"([&%$#_{}])", r"\\\1", caption),
            label=f"tab:{path.stem}" + f"-{number}" * (number > 1),
            column_format="l" + "r" * (frame.shape[1] - 1),
            position_float="centering",
        )
        found.append(text)
    path.write_text("\n".join(found), encoding="utf-8")


def bold_best(cells: pd.Series, better: str) -> list[str]:
    """Return a style per cell of a column: bold for its best number, unless all are equal or
    neither "higher" nor "lower" is `better`."""
    shown = pd.to_numeric(cells.str.extract(r"^(-?[\d.]+)")[0], errors="coerce")
    best = shown == (shown.min() if better == "lower" else shown.max())
    some = bool(better) and shown.nunique() > 1
    return [BOLD if one and some else "" for one in best]


def _across(
    name: str,
    caption: str,
    metric: Metric,
    lead: Mapping[str, Sequence],
    frames: Iterable[pd.DataFrame],
) -> Table:
    """Return a table of one metric, with a row per frame and a column per decoder, after the
    columns `lead`, {heading: [a value per frame]}."""
    cells = [{str(n): cell(metric, row) for n, row in frame.iterrows()} for frame in frames]
    values = pd.DataFrame(cells).fillna("-")
    frame = pd.concat([pd.DataFrame(lead).astype(str), values], axis=1)
    return Table(name, caption, frame, dict.fromkeys(map(str, values), metric.better))


def _known(frame: pd.DataFrame, name: str) -> bool:
    """Return whether some decoder has a metric that is neither missing nor empty."""
    return any(bool(v) if isinstance(v, Mapping | list) else not pd.isna(v) for v in frame[name])
