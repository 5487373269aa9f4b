"""Tables over several runs: tasks or swept values down, decoders across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from ouroboros.bench.report.cells import interval, number, ratio
from ouroboros.bench.report.leads import MEASURES, best_other, mean_lead, said
from ouroboros.bench.report.summary import cost_text
from ouroboros.bench.report.tables import WORDS, own_costs

Lead = Mapping[str, Sequence]
"""The first columns: what tells the runs apart, one value per run."""


CELLS: Mapping[str, tuple[str, Callable[[Mapping], str]]] = {
    "speedup": (
        "Latency speedup over greedy, pooled [95 % bootstrap]",
        lambda row: interval(row["latency_speedup"]),
    ),
    "macro": (
        "Macro speedup: geometric mean over prompts",
        lambda row: interval(row["latency_speedup_macro"]),
    ),
    "throughput": ("Tokens per second", lambda row: number(row["output_throughput"], 1)),
    "predicted": (
        "Speedup over greedy, {predicted} by {priced}",
        lambda row: interval(row["predicted_speedup"]),
    ),
    "cost": (
        "Cost per token by {priced}, in target calls of one node",
        lambda row: ratio(row["cost_per_token"]),
    ),
    "calls": (
        "Calls per token: (target + {cost} x draft) / new tokens",
        lambda row: ratio(row["calls_interval"]),
    ),
}
"""By measure: a table's caption, and the cell of a decoder's row."""


def comparisons(lead: Lead, summaries: Sequence[Mapping]) -> dict[str, tuple[str, pd.DataFrame]]:
    """Return caption and table of each measure that some run has, and of Ouroboros over the best
    other decoder, by name."""
    priced = ", ".join(dict.fromkeys(one["costs"] for one in summaries if one["costs"]))
    absent = set() if any(one["timed"] for one in summaries) else {"speedup", "macro", "throughput"}
    absent |= set() if priced else {"predicted", "cost"}
    fits = [own_costs(one) for one in summaries if one["costs"]]
    word = "a fit" if all(fits) else "predicted, of timed runs a fit" if any(fits) else "predicted"
    words = {"priced": priced, "cost": cost_text(summaries), "predicted": word}
    found = {
        name: (caption.format(**words), comparison_frame(lead, summaries, cell))
        for name, (caption, cell) in CELLS.items()
        if name not in absent
    }
    ahead = best_other_frame(lead, summaries)
    caption = "Ouroboros over the best other decoder of each run, paired by prompt [95 % bootstrap]"
    return found | ({"lead": (caption, ahead)} if len(ahead) else {})


def best_other_frame(lead: Lead, summaries: Sequence[Mapping]) -> pd.DataFrame:
    """Return one row per run that has both: Ouroboros over the best other decoder, by the best
    measure that all of them have, and the geometric mean; empty where no run has both."""
    able = [index for index, one in enumerate(summaries) if best_other(one, MEASURES[-1])]
    for measure in MEASURES:
        have = [(i, one) for i in able if (one := best_other(summaries[i], measure))]
        if len(have) == len(able):
            break
    if not able:
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
