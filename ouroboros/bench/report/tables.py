"""Tables of summaries: selections of columns of one DataFrame, and the one way to format a cell.

A cell is text as a reader sees it ("3.04x [2.15, 3.86]", "-" where nothing is known); the numbers
in full are in `RunSet.numbers`. Which metric is a column of which table is said in its registry
entry. A column that no decoder fills is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table

from ouroboros.bench.metrics.intervals import COST_RATIO, Interval, over_runs
from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.registry import Metric
from ouroboros.bench.metrics.sample import METHOD, PLAIN
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.summary import Summary, interval_of

CAPTIONS = {
    "default": "Results",
    "speed": "Speed",
    "lead": "Each decoder against Ouroboros, paired by prompt: above 1 Ouroboros is ahead",
    "time": "Time and memory",
    "counts": "Calls and acceptance",
    "trees": "Proposed trees, and estimated against actual acceptance of their nodes",
}
"""The tables of one run, in order, by the name under which metrics ask to be a column."""
NOTES = """\
[low, high]: 95 % intervals over prompts, paired where two decoders are compared (bootstrap; for \
yes-or-no scores Wilson's). Warm-up is excluded; decoders alternate prompt by prompt."""
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def cell(metric: Metric, row: Mapping | pd.Series) -> str:
    """Return a metric of a frame's row as text, with its interval; "-" where it is unavailable."""
    value = row.get(metric.name)
    if isinstance(value, str):
        return value
    found = None if value is None else interval_of(row, metric.name)
    if found is None:
        return "-"
    ends = (end and end * metric.scale for end in (found.low, found.high))
    return Interval(found.value * metric.scale, *ends).text(metric.digits, metric.suffix)


def columns(summary: Summary, table: str) -> list[Metric]:
    """Return the metrics that a table of a run shows: those that some decoder has, and in the
    default table one of the task's scores."""
    frame = summary.frame
    known = {n for n in summary.metrics if n in frame and (frame[n].map(_filled)).any()}
    shown = [m for n, m in summary.metrics.items() if n in known and table in m.tables.split()]
    if table == "default":
        scores = [m for m in shown if m.name not in METRICS]
        shown = [m for m in shown if not known & set(m.instead_of.split()) and m not in scores[1:]]
    return shown


def run_table(summary: Summary, table: str) -> pd.DataFrame:
    """Return one table of a run, a row per decoder; empty without any column."""
    shown = columns(summary, table)
    if not shown:
        return pd.DataFrame()
    frame = summary.frame
    if table == "lead":
        frame = frame.drop(index=METHOD, errors="ignore")
    found = [
        {"decoder": str(name)} | {m.heading: cell(m, row) for m in shown}
        for name, row in frame.iterrows()
        if any(_filled(row[m.name]) for m in shown)
    ]
    if table == "lead":
        for line in found:
            lead = interval_of(frame.loc[line["decoder"]], shown[0].name)
            line["Ouroboros is"] = lead.significance if lead else "-"
    return pd.DataFrame(found)


def run_tables(summary: Summary) -> list[tuple[str, str, pd.DataFrame]]:
    """Return (name, caption, frame) of every table of a run that has something to show."""
    costs = f" (cost/token by {summary.facts.costs})" if summary.facts.costs else ""
    found = [
        (name, caption + costs * (name == "counts"), run_table(summary, name))
        for name, caption in CAPTIONS.items()
    ]
    for metric in METRICS.shown_in("groups") if len(summary.groups) else []:
        parts = {
            str(group): part.droplevel("group")
            for group, part in summary.groups.groupby(level="group", sort=False)
        }
        rows = [
            {"group": group, "samples": str(part["samples"].max())} for group, part in parts.items()
        ]
        caption = f"{metric.heading} by group of prompts"
        found.append(("groups", caption, _across(metric, rows, parts.values())))
    found.append(("sources", "Nodes of the proposed trees by source", _source_table(summary)))
    if summary.facts.published:
        found.append(("published", published_caption(summary.facts), published_table(summary)))
    return [one for one in found if one[2].shape[1] > 1]


def terminal_table(summary: Summary, width: int = 100) -> Table:
    """Return the table that commands print: at most seven columns and the task's scores.

    Where a line would be longer than `width`, intervals go below their values; where that is not
    enough, accepted/step and TTFT are left out.
    """

    def fits(frame: pd.DataFrame) -> bool:
        texts = {name: "\n".join([str(name), *frame[name]]) for name in frame}
        return sum(max(map(len, text.split("\n"))) + 2 for text in texts.values()) - 2 <= width

    frame = run_table(summary, "default")
    below = frame.replace(r" \[", "\n[", regex=True)
    choices = [frame, below]
    for name in ("accepted_per_step", "ttft_ms"):
        choices.append(choices[-1].drop(columns=METRICS[name].heading, errors="ignore"))
    shown = next((one for one in choices if fits(one)), choices[-1])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for place, name in enumerate(shown):
        table.add_column(str(name), justify="right" if place else "left", overflow="fold")
    for row in shown.itertuples(index=False):
        table.add_row(*row)
    return table


def legend(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return the definition of every metric that the tables of some runs show, by its heading."""
    found = {
        m.heading: m.definition for one in summaries for t in CAPTIONS for m in columns(one, t)
    }
    costs = {f"{COST_RATIO if (c := one.facts.draft_cost) is None else c:.3g}" for one in summaries}
    cost = costs.pop() if len(costs) == 1 else "the pair's own"
    if "calls/token" in found:
        found["calls/token"] = found["calls/token"].replace("draft cost", f"draft cost ({cost})")
    return found


def comparisons(
    lead: Mapping[str, Sequence], summaries: Sequence[Summary]
) -> dict[str, tuple[str, pd.DataFrame]]:
    """Return caption and table of each comparison of runs, by name: decoders across, a row per run.

    `lead` holds the first columns, which tell the runs apart: one value per run.
    """
    costs = ", ".join(
        dict.fromkeys(
            f"{one.facts.costs}{' (a fit)' * one.facts.fitted}"
            for one in summaries
            if one.facts.costs
        )
    )
    rows = [
        {key: str(values[index]) for key, values in lead.items()}
        | {"prompts": f"{one.facts.prompts}{' (incomplete)' * one.facts.incomplete}"}
        for index, one in enumerate(summaries)
    ]
    found = {}
    for metric in METRICS.shown_in("comparison"):
        if any(one.frame[metric.name].map(_filled).any() for one in summaries):
            by = f" By {costs}." if "costs" in metric.needs else ""
            caption = f"{metric.heading}: {metric.definition}{by}"
            table = _across(metric, rows, [one.frame for one in summaries])
            found[metric.name] = (caption, table)
    best = best_others(lead, summaries)
    caption = "The fastest other decoder of each run against Ouroboros: above 1 Ouroboros is ahead"
    return found | ({"lead": (caption, best)} if len(best) else {})


def best_other(summary: Summary, metric: str) -> tuple[str, Interval] | None:
    """Return the decoder, no variant of Ouroboros, that comes closest to Ouroboros or beats it by
    most, and Ouroboros' lead; None without any.

    It is chosen on the samples that are shown, which is in its favour.
    """
    leads = {str(name): interval_of(row, metric) for name, row in summary.frame.iterrows()}
    known = {n: one for n, one in leads.items() if one and not n.startswith(METHOD)}
    return min(known.items(), key=lambda pair: pair[1].value, default=None)


def best_others(lead: Mapping[str, Sequence], summaries: Sequence[Summary]) -> pd.DataFrame:
    """Return one row per run that has both: the best other decoder against Ouroboros by the best
    measure that all these runs have, then the geometric mean; empty where no run has both."""
    measures = METRICS.shown_in("lead")
    found = [{m.name: best_other(one, m.name) for m in measures} for one in summaries]
    able = [index for index, one in enumerate(found) if any(one.values())]
    if not able:
        return pd.DataFrame()
    metric = next(m for m in measures if all(found[index][m.name] for index in able))
    pairs = {index: found[index][metric.name] for index in able}
    rows = [
        {key: str(values[index]) for key, values in lead.items()} | _lead_cells(metric, *pair)
        for index, pair in pairs.items()
        if pair
    ]
    if len(rows) > 1:
        mean = over_runs([pair[1] for pair in pairs.values() if pair])
        title = dict.fromkeys(lead, "") | {next(iter(lead)): "geometric mean"}
        rows.append(title | _lead_cells(metric, "", mean))
    return pd.DataFrame(rows)


def published_table(summary: Summary) -> pd.DataFrame:
    """Return published tokens/s and speedups beside the measured ones; empty where none are."""
    theirs, frame = (summary.facts.published or {}).get("tokens_per_s", {}), summary.frame
    found = []
    for name in dict.fromkeys([*theirs, *frame.index]) if theirs else ():
        row: Mapping | pd.Series = frame.loc[name] if name in frame.index else {}
        speedup = published_speedup(theirs, name)
        measured = interval_of(row, "latency_speedup") if len(row) else None
        found.append(
            {
                "decoder": name,
                "published tokens/s": f"{theirs[name]:.1f}" if name in theirs else "-",
                "published speedup": f"{speedup:.2f}x" if speedup else "-",
                "measured tokens/s": cell(METRICS["output_throughput"], row),
                "measured speedup": cell(METRICS["latency_speedup"], row),
                "measured / published": (
                    f"{measured.value / speedup:.2f}" if measured and speedup else "-"
                ),
            }
        )
    return pd.DataFrame(found)


def published_caption(facts: RunFacts) -> str:
    """Return one line: where the published numbers come from, and what was measured here."""
    source = (facts.published or {}).get("source", "source not given")
    hardware = (facts.published or {}).get("hardware", "hardware not given")
    nature = "" if facts.nature == "model" else f" (a {facts.nature})"
    return (
        f"Published: {source}, on {hardware}. Measured{nature}: on {facts.device}. Speedups are "
        "over greedy."
    )


def published_speedup(tokens_per_s: Mapping[str, float], name: str) -> float | None:
    """Return tokens/s of a decoder / tokens/s of greedy, None where either is unknown."""
    ours, base = tokens_per_s.get(name), tokens_per_s.get(PLAIN)
    return ours / base if ours and base else None


def as_text(frame: pd.DataFrame, style: str = "github") -> str:
    """Return a frame as text (`style`: one of tabulate's), the first column to the left."""
    align = ["left", *["right"] * (frame.shape[1] - 1)] if len(frame) else None
    return frame.to_markdown(index=False, tablefmt=style, disable_numparse=True, colalign=align)


def as_latex(frame: pd.DataFrame, caption: str, label: str) -> str:
    """Return a frame as a LaTeX table with booktabs rules, everything escaped; \\ref{tab:<label>}
    names it."""
    return frame.to_latex(
        index=False,
        escape=True,
        caption=caption.translate(LATEX),
        label=f"tab:{label}",
        column_format="l" + "r" * (frame.shape[1] - 1),
    )


def write_table(frame: pd.DataFrame, stem: Path, *, caption: str) -> None:
    """Write `stem`.md, .csv and .tex; the LaTeX one needs \\usepackage{booktabs}."""
    stem.with_suffix(".md").write_text(f"{caption}\n\n{as_text(frame)}\n", encoding="utf-8")
    stem.with_suffix(".tex").write_text(as_latex(frame, caption, stem.name), encoding="utf-8")
    frame.to_csv(stem.with_suffix(".csv"), index=False)


def _across(
    metric: Metric, rows: Sequence[Mapping], frames: Iterable[pd.DataFrame]
) -> pd.DataFrame:
    """One metric: `rows` (the first cells), each continued by its frame's decoders across."""
    cells = ({str(name): cell(metric, row) for name, row in frame.iterrows()} for frame in frames)
    return pd.DataFrame([{**row, **own} for row, own in zip(rows, cells, strict=True)]).fillna("-")


def _source_table(summary: Summary) -> pd.DataFrame:
    """For each source of a decoder's nodes: how many, how many had an accepted parent, and how many
    of these were accepted."""
    found = []
    for decoder, trees in summary.frame["trees"].items():
        for source, own in (trees["sources"] if isinstance(trees, Mapping) else {}).items():
            share = own["right"] / own["judged"] if own["judged"] else None
            found.append(
                {
                    "decoder": decoder,
                    "source": source,
                    "nodes": str(own["proposed"]),
                    "parent accepted": str(own["judged"]),
                    "accepted": "-" if share is None else f"{100 * share:.0f} %",
                    "estimated": "-" if own["thought"] is None else f"{100 * own['thought']:.0f} %",
                }
            )
    return pd.DataFrame(found)


def _lead_cells(metric: Metric, decoder: str, lead: Interval) -> dict[str, str]:
    text = lead.text(metric.digits, metric.suffix)
    return {"best other": decoder, metric.heading: text, "Ouroboros is": lead.significance}


def _filled(value: Any) -> bool:
    return bool(value) if isinstance(value, Mapping | list) else not pd.isna(value)
