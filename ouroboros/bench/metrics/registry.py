"""What a metric is: one entry, which every table, file, plot and the glossary read.

The names of a formula's parameters say what it needs; `measure` passes, for one decoder:

    samples     its completions            failed      its failed samples
    greedy      greedy's completions       draft_cost  a draft call in target calls
    ouroboros   Ouroboros' completions     costs       a `CostModel`
    hf_greedy   transformers' greedy       trees       `tree_metrics` of its proposed trees
    in_law      it keeps the distribution  audit       the audit's verdict
                only, not the tokens

A formula returns a number, an `Interval`, or (`scalar=False`) a text, list or mapping; None where
there is nothing to count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Metric:
    """One metric: `name` in files, `heading` (at most three words) in tables, its definition.

    `pooled` says how prompts are combined, `better` is "higher", "lower" or "". Cells show
    `scale` x value with `digits` decimals and then `suffix`. `interval`: the value has a 95 %
    interval. `timed`: unavailable where jobs shared the device. `by_group`: also computed for each
    group of prompts. `tables` names the tables that show it as a column ("default" is the
    terminal's; "speed", "lead", "time", "counts", "trees"; "headline" is the JSON line), and the
    tables of it alone, decoders across: "comparison" (a row per run), "groups". `instead_of`: a
    column of "default" only where none of these metrics is available.
    """

    name: str
    heading: str
    formula: Callable
    definition: str
    unit: str = ""
    pooled: str = "sum / sum"
    better: str = ""
    digits: int = 2
    scale: float = 1.0
    suffix: str = ""
    interval: bool = False
    timed: bool = False
    by_group: bool = False
    scalar: bool = True
    tables: str = ""
    instead_of: str = ""

    @property
    def columns(self) -> list[str]:
        """The metric's columns in a table of numbers: its value, an interval's ends and prompts."""
        ends = ("low", "high", "prompts") if self.interval else ()
        return [self.name, *(f"{self.name}.{end}" for end in ends)]

    @property
    def needs(self) -> tuple[str, ...]:
        """What the formula needs: the names of its parameters."""
        return tuple(inspect.signature(self.formula).parameters)

    def __call__(self, *args, **given):
        """Return the formula's value."""
        return self.formula(*args, **given)


class Registry(dict[str, Metric]):
    """Metrics by name, in the order in which tables show them."""

    def __init__(self, *entries: Metric) -> None:
        super().__init__({metric.name: metric for metric in entries})
        assert len(self) == len(entries), "a metric is registered twice"

    def shown_in(self, table: str) -> list[Metric]:
        """Return the metrics that a table shows."""
        return [metric for metric in self.values() if table in metric.tables.split()]

    def measure(self, given: Mapping[str, object], *, timed=True, groups=False) -> dict:
        """Return every metric by name for what is `given` by name; None where a part of that is
        missing, and of timed ones unless `timed`. `groups`: only those of groups of prompts."""
        found, given = {}, {"in_law": False, **given}
        for metric in self.values():
            needs = {name: given.get(name) for name in metric.needs}
            if metric.by_group or not groups:
                known = None not in needs.values() and (timed or not metric.timed)
                found[metric.name] = metric(**needs) if known else None
        return found

    def glossary(self) -> pd.DataFrame:
        """Return name, heading, unit, pooling, direction and definition of every metric."""
        columns = ["name", "heading", "unit", "pooled", "better", "definition"]
        return pd.DataFrame(map(vars, self.values()))[columns]
