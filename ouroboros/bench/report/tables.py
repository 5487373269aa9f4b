"""Make tables from summaries: select columns of the DataFrame and format its cells.

A cell is the text that a reader sees ("3.04x [2.15, 3.86]", "-" if unknown); `report.numbers` has
full precision. A metric's registry entry names the tables that show it as a column. Columns without
any value are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich import box
from rich.table import Table as TerminalTable

from ouroboros.audit.report import in_cell
from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.metrics.metrics import METRICS, Metric
from ouroboros.bench.metrics.sample import COST_RATIO, METHOD, PLAIN
from ouroboros.bench.report.summary import Summary, interval_of

CAPTIONS = {
    "default": "Results",
    "speed": "Speed",
    "lead": "Each decoder against Ouroboros, paired by prompt; above 1, Ouroboros is ahead",
    "time": "Time and memory",
    "counts": "Calls and acceptance",
    "trees": "Proposed trees, with the estimated and the actual acceptance of their nodes",
}
"""The captions of a run's tables, in order, by the names that metrics list in `tables`."""
NOTES = """\
[low, high]: 95 % intervals over prompts, paired where two decoders are compared (bootstrap; for \
yes-or-no scores Wilson's interval). Warm-up is excluded; decoders alternate by prompt or batch."""


class Table(NamedTuple):
    """A table's cells, its caption and `name`, the stem of its file names."""

    name: str
    caption: str
    frame: pd.DataFrame


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


def run_table(summary: Summary, table: str) -> pd.DataFrame:
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
    return pd.DataFrame(rows)


def run_tables(summary: Summary) -> list[Table]:
    """Return a run's non-empty tables."""
    found = [Table(name, text, run_table(summary, name)) for name, text in CAPTIONS.items()]
    if summary.facts.costs:
        costs = f"{CAPTIONS['counts']} (cost/token by {summary.facts.costs})"
        found = [one._replace(caption=costs) if one.name == "counts" else one for one in found]
    found += group_table(summary)
    sources = [
        {
            "decoder": decoder,
            "source": source,
            "nodes": str(own["proposed"]),
            "parent accepted": str(count),
            "accepted": f"{100 * own['accepted'] / count:.0f} %" if count else "-",
            "estimated": "-" if own["estimated"] is None else f"{100 * own['estimated']:.0f} %",
        }
        for decoder, trees in summary.frame["trees"].dropna().items()
        for source, own in trees["sources"].items()
        for count in [own["parent_accepted"]]
    ]
    found.append(Table("sources", "Nodes of the proposed trees by source", pd.DataFrame(sources)))
    found.append(published_table(summary))
    return [one for one in found if one.frame.shape[1] > 1]


def group_table(summary: Summary) -> list[Table]:
    """Return a list of one table: speedups, with a row per group of prompts and a column per
    decoder. The list is empty without groups or speedups."""
    shown = [metric for metric in METRICS.shown_in("groups") if metric.name in summary.groups]
    known = [metric for metric in shown if _known(summary.groups, metric.name)]
    if not known:
        return []
    groups = summary.groups.groupby(level="group", sort=False)
    parts = {str(group): part.droplevel("group") for group, part in groups}
    prompts = f"{known[0].name}.prompts"
    rows = [{"group": name, "prompts": f"{p[prompts].max():.0f}"} for name, p in parts.items()]
    caption = f"{known[0].heading} by group of prompts"
    return [Table("groups", caption, _across(known[0], rows, parts.values()))]


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
        f"Published: {published.get('source', 'source not given')}, on "
        f"{published.get('hardware', 'hardware not given')}. Measured{nature}: on {facts.device}. "
        "Speedups are over greedy."
    )
    return Table("published", caption, pd.DataFrame(rows))


def comparisons(
    lead: Mapping[str, Sequence], summaries: Sequence[Summary], prefix: str = ""
) -> list[Table]:
    """Return a table per metric that compares the runs: a row per run, a column per decoder.

    The first columns, `lead`, identify the runs: {heading: [a value per run]}. The tables are named
    `prefix` + metric.
    """
    # Costs measured in a timed run itself give a fit, not a prediction.
    facts = [one.facts for one in summaries if one.facts.costs]
    costs = [f.costs + " (a fit)" * (f.timed and "with the run" in f.costs) for f in facts]
    rows = [
        {key: str(values[index]) for key, values in lead.items()}
        | {"prompts": f"{one.facts.prompts}{' (incomplete)' * one.facts.incomplete}"}
        for index, one in enumerate(summaries)
    ]
    frames, found = [one.frame for one in summaries], []
    for metric in METRICS.shown_in("comparison"):
        if any(_known(frame, metric.name) for frame in frames):
            by = f" By {', '.join(dict.fromkeys(costs))}." if metric.priced else ""
            caption = f"{metric.heading}: {metric.definition}{by}"
            found.append(Table(prefix + metric.name, caption, _across(metric, rows, frames)))
    return found


def terminal_tables(summary: Summary, width: int = 100) -> list[TerminalTable]:
    """Return the tables that commands print: one with at most seven columns (and the task's score),
    and one with speedups by group of prompts, if there are groups.

    If a line is longer than `width`, intervals go below their values; if that is not enough,
    accepted/step and TTFT are left out. The table by group has values alone, and no columns for the
    slowest decoders if a line would be too long.
    """

    def fits(frame: pd.DataFrame) -> bool:
        texts = ["\n".join([str(name), *frame[name]]) for name in frame]
        return sum(max(map(len, text.split("\n"))) + 2 for text in texts) - 2 <= width

    frame = run_table(summary, "default")
    choices = [frame, frame.replace(r" (\[|\(n =)", r"\n\1", regex=True)]
    for name in ("accepted_per_step", "ttft_ms"):
        choices.append(choices[-1].drop(columns=METRICS[name].heading, errors="ignore"))
    found = [terminal_table(next(filter(fits, choices), choices[-1]))]
    for table in group_table(summary):
        frame = table.frame.replace(r" (\[|\(n =).*", "", regex=True)
        fewer = (frame.iloc[:, :count] for count in range(frame.shape[1], 2, -1))
        found.append(terminal_table(next(filter(fits, fewer), frame.iloc[:, :3])))
    return found


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
    found = {metric.heading: metric.definition for metric in shown}
    costs = {f"{COST_RATIO if (c := one.facts.draft_cost) is None else c:.3g}" for one in summaries}
    cost = costs.pop() if len(costs) == 1 else "the pair's own"
    if "calls/token" in found:
        found["calls/token"] = found["calls/token"].replace("draft cost", f"draft cost ({cost})")
    return found


def as_text(frame: pd.DataFrame, style: str = "github") -> str:
    """Return a frame as text in one of tabulate's styles; only the first column is left-aligned."""
    align = ["left", *["right"] * (frame.shape[1] - 1)] if len(frame) else None
    if style == "github":
        frame = frame.rename(columns=in_cell).map(in_cell)
    return frame.to_markdown(index=False, tablefmt=style, disable_numparse=True, colalign=align)


def write_table(frame: pd.DataFrame, stem: Path, *, caption: str) -> None:
    """Write a frame to `stem`.csv and `stem`.tex. The latter needs \\usepackage{booktabs}; its
    label is tab:<name of the file>."""
    csv, tex = (stem.with_name(f"{stem.name}.{kind}") for kind in ("csv", "tex"))  # "0.5" stays
    frame.to_csv(csv, index=False)
    caption, form = re.sub(r"([&%$#_{}])", r"\\\1", caption), "l" + "r" * (frame.shape[1] - 1)
    options: Any = {"index": False, "escape": True, "column_format": form, "encoding": "utf-8"}
    label = f"tab:{stem.name}"
    frame.to_latex(tex, caption=caption, label=label, **options)


def _across(
    metric: Metric, rows: Sequence[Mapping], frames: Iterable[pd.DataFrame]
) -> pd.DataFrame:
    """Return a table of one metric, with a row per frame and a column per decoder; `rows` has the
    first cells of each row, {heading: value}."""
    cells = ({str(name): cell(metric, row) for name, row in frame.iterrows()} for frame in frames)
    return pd.DataFrame([{**row, **own} for row, own in zip(rows, cells, strict=True)]).fillna("-")


def _known(frame: pd.DataFrame, name: str) -> bool:
    """Return whether some decoder has a metric that is neither missing nor empty."""
    return any(bool(v) if isinstance(v, Mapping | list) else not pd.isna(v) for v in frame[name])
