"""Compute all metrics of a measurement as one DataFrame, which all tables, plots and files read.

Invariant: failed samples are counted and named, but never enter a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from ouroboros.audit.report import OPEN, tally, verdict
from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.metrics.metrics import METRICS, Metric, score_intervals, score_metric
from ouroboros.bench.metrics.sample import COST_RATIO, METHOD, PLAIN, Sample, sample_frame
from ouroboros.bench.report.gather import Measured

COMPARED = (PLAIN, METHOD)
"""The decoders that others are compared with; metrics take their samples by these names."""
DIFFERENT = """\
Speedups compare all completions. Those that differ from greedy's, and the speedup over the equal \
ones alone"""
NO_GREEDY = """\
The run has no greedy decoder: no speedups, no check for equal tokens, no audit. Add greedy to \
decoder=[...] to have them."""


@dataclass(frozen=True)
class Summary:
    """All metrics of one run.

    `frame` has a row per decoder (greedy, then the others, fastest first) and a column per metric.
    A metric with an interval also has the columns `<name>.low`, `.high` and `.prompts`; a score is
    `score.<name>`. Unavailable values are NaN or None. `groups` has the same columns and a row per
    (group of prompts, decoder). `verdicts` is {decoder: {verdict: count}} of the audit; `problems`
    has notes on failures, missing predictions, completions that were cut off or timed out, and
    those that differ from greedy's. `label` is the run's name in a report, `sweep` the folder of
    its sweep, if any.
    """

    measured: Measured
    frame: pd.DataFrame
    groups: pd.DataFrame = field(default_factory=pd.DataFrame)
    verdicts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    problems: Sequence[str] = ()
    label: str = ""
    sweep: Path | None = None

    @property
    def facts(self) -> SimpleNamespace:
        """What was measured, and where (see `Measured.facts`)."""
        return self.measured.facts

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The registered metrics and the task's scores, by name."""
        scores = [str(name) for name in self.frame if str(name).startswith("score.")]
        names = [name for name in scores if not name.endswith((".low", ".high", ".prompts"))]
        found = (score_metric(name.removeprefix("score.")) for name in sorted(names))
        return METRICS | {metric.name: metric for metric in found}

    @property
    def notes(self) -> list[str]:
        """Notes for the reader, one line each: what is missing, what failed."""
        facts, found = self.facts, []
        if facts.incomplete:
            status = f"; the run's status is {facts.status!r}" * (facts.status != "finished")
            counts = f"{facts.samples} of {facts.samples_wanted} samples"
            found.append(f"**Incomplete**: {counts}{status}.")
        if not facts.timed:
            predicted = f"; speedups are predicted with {facts.costs}" if facts.costs else ""
            found.append(
                f"Counts only: other jobs may have shared the device, no time is shown{predicted}."
            )
        found += facts.fallbacks
        return [*found, *[NO_GREEDY] * (PLAIN not in self.frame.index), *self.problems]

    def to_dict(self) -> dict:
        """Return summary.json: the facts and, under "decoders", every metric."""
        decoders = {}
        for name, row in self.frame.iterrows():
            own: Any = self.groups[self.groups.index.get_level_values(-1) == name].iterrows()
            decoders[name] = {
                **self._values(row),
                "verdicts": dict(self.verdicts.get(str(name), {})),
                "groups": {group: self._values(part) for (group, _), part in own},
            }
        return {**vars(self.facts), "notes": self.notes, "decoders": decoders}

    def _values(self, row: pd.Series) -> dict:
        """Return a frame's row as plain JSON values."""
        found: dict[str, object] = {}
        for name, metric in self.metrics.items():
            if name in row and metric.interval:
                interval = interval_of(row, name)
                found[name] = interval and asdict(interval)
            elif name in row:
                found[name] = plain(row[name])
        return found

    def headline(self) -> dict[str, dict]:
        """Return each decoder's main metrics that are available, {decoder: {metric: value}},
        with four digits, for a command's JSON document."""
        shown = METRICS.shown_in("headline")
        known = {metric.name for metric in shown if self.frame[metric.name].notna().any()}
        names = [one.name for one in shown if not known & set(one.instead_of.split())]
        return {
            str(decoder): {
                name: float(f"{value:.4g}") if isinstance(value, float) else value
                for name in names
                if (value := plain(row[name])) is not None
            }
            for decoder, row in self.frame.iterrows()
        }


def summarise(measured: Measured) -> Summary:
    """Compute every metric of every decoder of a measurement."""
    run, costs, facts = measured.run, measured.priced, measured.facts
    good: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    failed: dict[str, list[Sample]] = {name: [] for name in run["decoders"]}
    for sample in measured.samples:
        (failed if sample.error else good)[sample.decoder].append(sample)
    verdicts = {name: tally(measured.audit, name) for name in good}
    draft_cost = COST_RATIO if facts.draft_cost is None else facts.draft_cost
    given: dict[str, Any] = {"costs": costs, "draft_cost": draft_cost, "timed": facts.timed}
    known: dict[str, dict[str, Any]] = {
        name: {"failed": failed[name], "audit": audit_cell(name, verdicts[name])} for name in good
    }

    def measure(by_decoder: Mapping[str, list[Sample]], **options) -> dict[str, dict]:
        frames = (sample_frame(by_decoder.get(n, ()), costs, draft_cost) for n in COMPARED)
        others: dict[str, Any] = dict(zip(COMPARED, frames, strict=True))
        return {
            name: METRICS.measure(own, **known[name], **others, **given, **options)
            for name, own in by_decoder.items()
        }

    rows = measure(good)
    groups: dict[tuple[str, str], dict] = {}
    for group in dict.fromkeys(s.group for own in good.values() for s in own if s.group):
        members = {name: [s for s in own if s.group == group] for name, own in good.items()}
        part = measure(members, groups=True)
        groups |= {(group, name): row for name, row in part.items() if members[name]}
    problems: dict[str, list[str]] = {}
    different = []
    for name, samples in good.items():
        corpus_scores = run.get("corpus_scores", {}).get(name, {})
        scores = score_intervals(samples, measured.scores) | corpus_scores
        rows[name] |= {f"score.{key}": value for key, value in scores.items()}
        own = [measured.scores[s.key] for s in samples if s.key in measured.scores]
        count = len(samples)
        cut = sum(s.finish in ("length", "context") for s in samples)
        late = sum(scores.get("timed_out", 0) for scores in own)
        why = costs.why_not(samples) if costs and rows[name]["cost_per_token"] is None else None
        limit = f"at the length limit (max_new={run['max_new']})"
        for said, applies in (
            (f"only {len(own)} of {count} completions have a score", 0 < len(own) < count),
            (f"{cut} of {count} scored completions were cut off {limit}", scores and cut),
            (f"{late:.0f} of {count} programs timed out, so they did not pass", late),
            *(
                (f"{n} failed: {error}", n)
                for error, n in Counter(s.error for s in failed[name]).items()
            ),
            (f"no cost/token and no prediction: {why}", why),
        ):
            if applies:
                problems.setdefault(said, []).append(name)
        if "in law" not in verdicts[name] and (differing := rows[name]["unequal"]):
            alone = rows[name]["equal_speedup"]
            ratio = f", {alone.text(unit='x')}" if alone else ""
            different.append(f"{name} {differing} of {count}{ratio}")
    frame = _frame(rows).rename_axis("decoder")
    for metric in METRICS.shown_in("default"):  # sort by the first available metric
        if metric.better and frame[metric.name].notna().any():
            ascending = metric.better == "lower"
            frame = frame.sort_values(metric.name, ascending=ascending, kind="stable")
            break
    frame = frame.loc[sorted(frame.index, key=lambda name: name != PLAIN)]
    by_group = _frame(
        {key: groups[key] for name in frame.index for key in groups if key[1] == name}
    )
    if groups:
        by_group.index = pd.MultiIndex.from_tuples(by_group.index, names=["group", "decoder"])
    found = [f"{', '.join(names)}: {said}" for said, names in problems.items()]
    found += [f"{DIFFERENT}: {'; '.join(different)}."] * bool(different)
    return Summary(measured, frame, by_group, verdicts, found)


def audit_cell(decoder: str, counts: Mapping[str, int]) -> str | None:
    """Return a decoder's verdict; for greedy, name what it was compared with."""
    text = verdict(counts) if counts else None
    compared = decoder == PLAIN and counts.keys() - {"reference", *OPEN}
    return f"{text} (float64)" if compared else text


def interval_of(row: Mapping | pd.Series, name: str) -> Interval | None:
    """Return a metric's value and interval in a row of `Summary.frame`; None if unavailable."""
    ends = (row.get(f"{name}.{end}") for end in ("low", "high", "prompts"))
    value, low, high, prompts = (None if pd.isna(end) else end for end in (row[name], *ends))
    return None if value is None else Interval(value, low, high, prompts and int(prompts))


def _frame(rows: Mapping) -> pd.DataFrame:
    """Return a frame with a row per key; see `Summary` for the columns of an interval."""
    flat = []
    for row in rows.values():
        cells: dict[str, object] = {}
        for name, value in row.items():
            cells[name] = getattr(value, "value", value)
            if isinstance(value, Interval) or (name in METRICS and METRICS[name].interval):
                ends = ("low", "high", "prompts")
                cells |= {f"{name}.{end}": getattr(value, end, None) for end in ends}
        flat.append(cells)
    frame = pd.DataFrame(flat, index=list(rows))
    texts = [name for name, metric in METRICS.items() if not metric.scalar]
    numbers = frame.columns.difference(texts)
    return frame.astype({name: float for name in numbers if frame[name].isna().any()})


def plain(value: Any) -> object:
    """Return a frame's cell as a plain JSON value."""
    if isinstance(value, Mapping | list | str):
        return value
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
