"""The kinds of tables that README and docs quote, each made of one or more results folders.

Invariant: a table is its folders' figures and no others; its kind is named by a marker on the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import gmean

from ouroboros.bench.report.cells import interval, number, percent, ratio, times
from ouroboros.bench.report.compare import best_other_frame
from ouroboros.bench.run.store import RUN

NAMES = {
    "hf_greedy": "transformers' greedy",
    "hf_assisted": "transformers' assisted",
    "hf_assisted_constant": "transformers' assisted, constant",
    "hf_assisted_defaults": "transformers' assisted, defaults",
    "hf_prompt_lookup": "transformers' prompt lookup",
}


def summary_of(path: Path) -> dict:
    """Return a folder's summary.json."""
    return json.loads((path / "summary.json").read_text("utf-8"))


Found = tuple[pd.DataFrame, list[str]]


def headline(paths: Sequence[Path]) -> Found:
    """Every decoder in time; the slowest first."""
    (path,) = paths
    summary = summary_of(path)
    rows = sorted(summary["decoders"].items(), key=lambda pair: pair[1]["output_throughput"] or 0)
    frame = pd.DataFrame(
        {
            "decoder": named(name),
            "tokens/s": number(row["output_throughput"], 1),
            "speedup": interval(row["latency_speedup"]),
            "mean of prompts": interval(row["latency_speedup_macro"]),
            "cost/token": ratio(row.get("cost_per_token")),
            "first token, ms": number(row["ttft_ms"], 0),
            "Ouroboros over it": led(name, row, "latency"),
            "to the first token": led(name, row, "ttft"),
            "other text": other_text(row),
        }
        for name, row in rows
    )
    shares = [row["repetition_rate"] for _, row in rows if row["repetition_rate"] is not None]
    least, most = percent(min(shares)), percent(max(shares))
    span = most if least == most else f"{least.removesuffix(' %')} to {most}"
    repeats = f"{span} of the text repeats itself"
    runs = json.loads((path / RUN).read_text("utf-8"))["repeats"]
    return frame, [
        "Over greedy, prefill included, pooled and as the geometric mean",
        summary["title"].split(" · ")[0] + (f", {runs} times" if runs > 1 else ""),
        *titled(summary),
        f"cost/token by {summary['costs']}, a fit",
        repeats,
    ]


def counts(paths: Sequence[Path]) -> Found:
    """Every decoder in counts, run by run."""
    rows = []
    for path in paths:
        summary = summary_of(path)
        lead = {"run": path.name} if len(paths) > 1 else {}
        for name, row in summary["decoders"].items():
            rows.append(
                {
                    **lead,
                    "decoder": named(name),
                    "calls/token": number(row["calls_per_token"], 3),
                    "target calls/token": number(row.get("target_forwards_per_token"), 3),
                    "draft calls/token": number(row.get("draft_forwards_per_token"), 3),
                    "cost/token": ratio(row.get("cost_per_token")),
                    "speedup (prediction)": interval(row.get("predicted_speedup")),
                    "Ouroboros over it, by cost": led(name, row, "cost"),
                    "repeats": percent(row["repetition_rate"]),
                }
            )
    return pd.DataFrame(rows), priced(summary_of(paths[0]))


def drafters(paths: Sequence[Path]) -> Found:
    """Ouroboros over greedy and over the best other decoder, run by run: in time, or by costs.
    Raises `ValueError` for runs that one line under the table cannot describe."""
    found = [summary_of(path) for path in paths]
    told = [titled(one) if one["timed"] else priced(one)[1:] for one in found]
    if any(one != told[0] for one in told):
        raise ValueError(f"{paths[0].parent}: runs of other settings, or costs, in one table")
    runs = [path.name.replace("_t", ", T = ").replace("= 08", "= 0.8") for path in paths]
    timed = found[0]["timed"]
    titles = [one["title"].split(" · ")[0] for one in found]
    frame = best_other_frame({"run": titles if timed else runs}, found)
    if len({title.partition(",")[0] for title in titles}) == 1 < len(found):
        frame = frame[: len(found)]  # one task at several lengths has no mean
    columns = in_time(found) if timed else by_costs(found)
    for place, (name, cells) in enumerate(columns.items(), start=1):
        frame.insert(place, name, [*cells, ""][: len(frame)])
    frame["best other"] = [named(name) for name in frame["best other"]]
    return frame.rename(columns=lambda name: name.replace("ouroboros", "Ouroboros")), told[0]


def in_time(found: Sequence[Mapping]) -> dict[str, list[str]]:
    """Return columns of timed runs: what greedy's texts are like, Ouroboros' speed, and how many
    of its texts are others."""
    plain, ours = ([one["decoders"][name] for one in found] for name in ("greedy", "ouroboros"))
    return {
        "tokens a text": [number(row["new_tokens"] / row["samples"], 0) for row in plain],
        "repeats": [percent(row["repetition_rate"]) for row in plain],
        "tokens/s": [number(row["output_throughput"], 1) for row in ours],
        "over greedy": [interval(row["latency_speedup"]) for row in ours],
        "other text": [told(row) for row in ours],
    }


def by_costs(found: Sequence[Mapping]) -> dict[str, list[str]]:
    """Return the column of runs that only count: Ouroboros over greedy, and the mean."""
    over = [one["decoders"]["ouroboros"]["predicted_speedup"] for one in found]
    mean = times(gmean([one["value"] for one in over]))
    return {"over greedy (prediction)": [*map(interval, over), mean]}


def verdicts(paths: Sequence[Path]) -> Found:
    """Texts that differ from plain decoding's, decoders across, and what the audit says of them."""
    rows = []
    for path in paths:
        summary = summary_of(path)
        cells = {named(n): told(row) for n, row in summary["decoders"].items() if n != "greedy"}
        rows.append({"run": path.name, "prompts": str(summary["prompts"]), **cells})
    return pd.DataFrame(rows).fillna("-"), ["texts that differ from greedy's, and the verdict"]


def agreement(paths: Sequence[Path]) -> Found:
    """What a draft of each agreement is worth, over all groups."""
    (path,) = paths
    found = json.loads((path / "agreement.json").read_text("utf-8"))
    rows: dict[tuple, dict] = {}
    whole = [row for row in found["rows"] if row["group"] == "all"]
    for row in whole:
        key = (row["decoder"], row["agreement"])
        heads = {"decoder": named(key[0]), "agreement": number(key[1], 2)}
        column = f"{row['costs']}, draft call {row['ratio']:g}"
        rows.setdefault(key, heads)[column] = interval(row["speedup"])
    said = f"speedup over greedy (prediction), {max(row['prompts'] for row in whole)} texts"
    return pd.DataFrame(rows.values()).fillna("-"), [said]


def advice(paths: Sequence[Path]) -> Found:
    """How far predictions are from what was measured, by kind of decoder."""
    (path,) = paths
    found = json.loads((path / "check.json").read_text("utf-8"))
    rows = [
        {"decoders": named(kind)}
        | {key.replace("_", " "): plain(value) for key, value in row.items()}
        for kind, row in found["accuracy"].items()
    ]
    return pd.DataFrame(rows), [f"{found['what']}: prediction against measurement"]


def tuning(paths: Sequence[Path]) -> Found:
    """The configured settings against the best found, and what these lose by other costs."""
    found = [json.loads((path / "tuning.json").read_text("utf-8")) for path in paths]
    rows = [
        {key: plain(value) for key, value in row.items() if key != "settings"}
        | {"decoder": named(row["decoder"])}
        for one in found
        for row in one["report"]
    ]
    texts = dict.fromkeys(f"{one['texts']} recorded texts, by replay" for one in found)
    frame = pd.DataFrame(rows).fillna("-")
    last = "settings tried"
    return frame[[*frame.columns.drop(last), last]], list(texts)


def host(paths: Sequence[Path]) -> Found:
    """Milliseconds of a step on the host, decoders down, contexts across."""
    (path,) = paths
    rows: dict[str, dict] = {}
    for row in json.loads((path / "host.json").read_text("utf-8")):
        own = rows.setdefault(row["decoder"], {"decoder": named(row["decoder"])})
        own[f"{row['context']} tokens"] = number(row["ms_per_step"], 2)
    return pd.DataFrame(rows.values()), ["milliseconds of a step, the models' own time left out"]


KINDS: Mapping[str, Callable[[Sequence[Path]], Found]] = {
    "headline": headline,
    "counts": counts,
    "drafters": drafters,
    "verdicts": verdicts,
    "agreement": agreement,
    "advice": advice,
    "tuning": tuning,
    "host": host,
}
"""By the word after "results:" what makes the table of some folders."""
ALONE = ("headline", "agreement", "advice", "host")
"""The kinds that are made of one folder."""
READ = {
    "agreement": "agreement.json",
    "advice": "check.json",
    "tuning": "tuning.json",
    "host": "host.json",
}
"""By kind, the file that it reads, where that is not summary.json."""


def named(decoder: str) -> str:
    """Return a decoder's name as a page has it."""
    return NAMES.get(decoder) or ("Ouroboros" if decoder == "ouroboros" else decoder).replace(
        "_", " "
    )


def led(name: str, row: Mapping, measure: str) -> str:
    """Return Ouroboros' paired lead over a decoder, nothing for itself."""
    return "" if name == "ouroboros" else interval(row.get(f"{measure}_vs_ouroboros"))


def other_text(row: Mapping) -> str:
    """Return how many texts are not greedy's, and the verdict's kind; nothing where none is."""
    return told(row) if row["unequal"] else ""


def told(row: Mapping) -> str:
    """Return the texts that differ, with the audit's word on them; "-" where none was compared."""
    if not row["unequal"]:
        return number(row["unequal"], 0)
    verdicts = row["verdicts"] or {}
    word = "BUG" if "BUG" in verdicts else "ties" if verdicts else "not audited"
    return f"{row['unequal']} of {row['samples']}, {word}"


def titled(summary: Mapping) -> list[str]:
    """Return pair, number format and temperature of a run."""
    return summary["title"].split(" · ")[1:4]


def priced(summary: Mapping) -> list[str]:
    """Return by which costs a summary counts."""
    return [summary["title"].split(" · ")[0], *([summary["costs"]] if summary.get("costs") else [])]


def plain(value: object) -> str:
    """Return a figure, or a name, as a cell."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
