"""Tables over several runs: tasks or swept values down, decoders across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from ouroboros.bench.report.cells import interval, number, ratio
from ouroboros.bench.report.leads import MEASURES, best_other, mean_lead, said
from ouroboros.bench.report.summary import cost_text
from ouroboros.bench.report.tables import WORDS

Lead = Mapping[str, Sequence]
"""The first columns: what tells the runs apart, one value per run."""


def speedup_cell(row: Mapping) -> str:
    """Latency speedup over greedy and its interval."""
    return interval(row["latency_speedup"])


def macro_cell(row: Mapping) -> str:
    """Geometric mean of the prompts' own latency speedups, and its interval."""
    return interval(row["latency_speedup_macro"])


def throughput_cell(row: Mapping) -> str:
    """Tokens per second."""
    return number(row["output_throughput"], 1)


def predicted_cell(row: Mapping) -> str:
    """Speedup over greedy as the costs predict it, and its interval."""
    return interval(row["predicted_speedup"])


def cost_cell(row: Mapping) -> str:
    """Cost per token and its interval."""
    return ratio(row["cost_per_token"])


def calls_cell(row: Mapping) -> str:
    """Calls per token at the published pair's cost ratio, and its interval."""
    return ratio(row["calls_interval"])


def lead_frame(lead: Lead, summaries: Sequence[Mapping]) -> pd.DataFrame:
    """Return one row per run: Ouroboros over the best other decoder, by the best measure that all
    runs have, and the geometric mean over the runs; empty where no run has both."""
    for measure in MEASURES:
        found = [best_other(summary, measure) for summary in summaries]
        have = [(index, one) for index, one in enumerate(found) if one]
        if have and (measure == MEASURES[-1] or len(have) == len(found)):
            break
    if not have:
        return pd.DataFrame()
    column = f"ouroboros over it, by {WORDS[measure].format(cost=cost_text(summaries))}"
    rows = [
        {key: str(values[index]) for key, values in lead.items()}
        | {"best other": name, column: interval(one), "it is": said(one)}
        for index, (name, one) in have
    ]
    if len(have) > 1:
        mean = mean_lead([one for _, (_, one) in have])
        title = dict.fromkeys(lead, "") | {next(iter(lead)): "geometric mean"}
        rows.append(title | {"best other": "", column: interval(mean), "it is": said(mean)})
    return pd.DataFrame(rows)


def comparison_frame(
    lead: Lead, summaries: Sequence[Mapping], cell: Callable[[Mapping], str]
) -> pd.DataFrame:
    """Return one row per run: `lead`, prompts measured (and if incomplete), a cell per decoder."""
    names = dict.fromkeys(name for summary in summaries for name in summary["decoders"])
    rows = []
    for index, summary in enumerate(summaries):
        cells = {
            name: cell(summary["decoders"][name]) for name in names if name in summary["decoders"]
        }
        prompts = str(summary["prompts"]) + (" (incomplete)" if summary["incomplete"] else "")
        own = {key: str(values[index]) for key, values in lead.items()}
        rows.append({**own, "prompts": prompts, **cells})
    return pd.DataFrame(rows).fillna("-")


def numbers_frame(lead: Lead, summaries: Sequence[Mapping]) -> pd.DataFrame:
    """Return every single number in full, one row per run and decoder (lists are left out)."""
    rows = []
    for index, summary in enumerate(summaries):
        own = {key: values[index] for key, values in lead.items()}
        facts = {key: summary[key] for key in ("device", "nature", "incomplete")}
        for decoder, row in summary["decoders"].items():
            plain = {key: value for key, value in row.items() if not isinstance(value, list)}
            nested = ("groups", "acceptance_histogram", "tokens_by_source", "trees")
            plain = {key: value for key, value in plain.items() if key not in nested}
            rows.append({**own, **facts, "decoder": decoder, **plain})
    return pd.json_normalize(rows, sep=".")
