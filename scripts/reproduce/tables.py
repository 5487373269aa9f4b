"""The kinds of tables that README and docs quote, each made from one or more results folders.

Each function takes folders and returns a frame of text cells, six columns at most, and notes for
the line below the table. Figures are those of the folders' summary.json, agreement.json, and so on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import gmean

from ouroboros.bench.metrics.intervals import Interval, over_runs

Table = tuple[pd.DataFrame, list[str]]
NAMES = {
    "ouroboros": "Ouroboros",
    "hf_greedy": "transformers' greedy",
    "hf_assisted": "transformers' assisted",
    "hf_assisted_constant": "transformers' assisted, constant",
    "hf_assisted_defaults": "transformers' assisted, defaults",
    "hf_prompt_lookup": "transformers' prompt lookup",
}


def headline(paths: Sequence[Path]) -> Table:
    """Every decoder of one timed run, the slowest first."""
    (path,) = paths
    decoders = read(path)["decoders"]
    rows = sorted(decoders.items(), key=lambda item: item[1]["output_throughput"] or 0)
    frame = pd.DataFrame(
        {
            "decoder": title(name),
            "tokens/s": number(row["output_throughput"], 1),
            "speedup": interval(row["latency_speedup"]),
            "vs Ouroboros": "" if name == "ouroboros" else interval(row["latency_vs_ouroboros"]),
            "TTFT (ms)": number(row["ttft_ms"], 0),
        }
        for name, row in rows
    )
    differ = {title(name): differing(row) for name, row in rows if row["unequal"]}
    text = "; ".join(f"{name}: {found}" for name, found in differ.items())
    rates = sorted(r for _, row in rows if (r := row["repetition_rate"]) is not None)
    repeated = dict.fromkeys(f"{100 * rate:.0f}" for rate in (rates[0], rates[-1]))
    return frame, [
        "speedup over greedy with prefill [95 % CI]",
        *setting(path),
        f"text that differs from greedy's: {text}" if text else "all text equal to greedy's",
        f"repeated 4-grams {' to '.join(repeated)} %",
    ]


def counts(paths: Sequence[Path]) -> Table:
    """Calls and cost per token of every decoder, run by run."""
    rows = []
    for path in paths:
        for name, row in read(path)["decoders"].items():
            rows.append(
                ({"run": label(path)} if len(paths) > 1 else {})
                | {
                    "decoder": title(name),
                    "target calls/token": number(row["target_forwards_per_token"], 3),
                    "draft calls/token": number(row["draft_forwards_per_token"], 3),
                    "cost/token": interval(row["cost_per_token"], 3, ""),
                    "vs Ouroboros": ""
                    if name == "ouroboros"
                    else interval(row.get("cost_vs_ouroboros")),
                }
            )
    costs = f"cost by {read(paths[0])['costs']}, in target calls of one node"
    shared = [part for part in setting(paths[0]) if all(part in setting(path) for path in paths)]
    return pd.DataFrame(rows), [*shared, costs]


def drafters(paths: Sequence[Path]) -> Table:
    """Ouroboros over greedy and over the best other decoder, run by run: in time, or by costs.

    Raises `ValueError` for runs of different settings: one line below the table describes them all.
    """
    found = [read(path) for path in paths]
    timed = found[0]["timed"]
    notes = [
        setting(path)[2:] if one["timed"] else [f"by {one['costs']}"]
        for path, one in zip(paths, found, strict=True)
    ]
    if any(note != notes[0] for note in notes):
        raise ValueError(f"{paths[0].parent}: runs of different settings or costs in one table")
    measure = "latency" if timed else "predicted"
    speedup = f"{measure}_speedup"
    rows, leads = [], []
    for path, one in zip(paths, found, strict=True):
        ours = one["decoders"]["ouroboros"]
        name, lead = best_other(one, f"{measure}_vs_ouroboros")
        leads.append(Interval(**lead))
        rows.append(
            {
                "run": label(path),
                **({"tokens/s": number(ours["output_throughput"], 1)} if timed else {}),
                "speedup" if timed else "speedup (predicted)": interval(ours[speedup]),
                "best other": title(name),
                "vs best other": interval(lead),
                "verdict": verdict(leads[-1]),
            }
        )
    frame = pd.DataFrame(rows)
    tasks = {json.loads((path / "run.json").read_text())["task"]["name"] for path in paths}
    if len(tasks) > 1:  # a mean over tasks; one task at several lengths has none
        mean = over_runs(leads)
        last = {"run": "geometric mean", "vs best other": interval(vars(mean))}
        last["verdict"] = verdict(mean)
        if not timed:
            ratios = [one["decoders"]["ouroboros"][speedup]["value"] for one in found]
            last["speedup (predicted)"] = f"{gmean(ratios):.2f}x"
        frame = pd.concat([frame, pd.DataFrame([last])]).fillna("")
    return frame, notes[0]


def best_other(summary: Mapping, key: str) -> tuple[str, Mapping]:
    """Return the decoder, no variant of Ouroboros, over which Ouroboros' lead is smallest. It is
    chosen on the same samples that are shown, which is in that decoder's favour."""
    leads = {
        name: row[key]
        for name, row in summary["decoders"].items()
        if not name.startswith("ouroboros") and row[key]
    }
    return min(leads.items(), key=lambda item: item[1]["value"])


def verdicts(paths: Sequence[Path]) -> Table:
    """How many texts differ from plain decoding's, and what the audit says of them."""
    rows = []
    for path in paths:
        summary = read(path)
        others = [row for name, row in summary["decoders"].items() if name != "greedy"]
        found = [verdict for row in others for verdict in (row["verdicts"] or {}).items()]
        bugs = sum(count for verdict, count in found if verdict == "BUG")
        differ = sum(row["unequal"] or 0 for row in others)
        audited = all(row["verdicts"] or not row["unequal"] for row in others)
        rows.append(
            {
                "run": label(path),
                "decoders": str(len(others)),
                "texts": str(sum(row["samples"] for row in others)),
                "differ": str(differ),
                "numeric ties": str(differ - bugs) if audited else "-",
                "BUG": str(bugs) if audited else "-",
            }
        )
    return pd.DataFrame(rows), ["texts of all decoders but greedy, against greedy's"]


def agreement(paths: Sequence[Path]) -> Table:
    """What a draft of each agreement is worth, over all groups of prompts."""
    (path,) = paths
    rows: dict[tuple, dict] = {}
    whole = [r for r in read(path, "agreement.json")["rows"] if r["group"] == "all"]
    for row in whole:
        key = (row["decoder"], row["agreement"])
        first = {"decoder": title(key[0]), "agreement": number(key[1], 2)}
        column = f"{row['costs']} {row['ratio']:g}"
        rows.setdefault(key, first)[column] = interval(row["speedup"])
    return pd.DataFrame(rows.values()), [
        f"predicted speedup over greedy, {max(row['prompts'] for row in whole)} prompts",
        "columns: costs, and a draft call in target calls",
    ]


def advice(paths: Sequence[Path]) -> Table:
    """How far predictions are from measurements, by kind of decoder."""
    (path,) = paths
    found = read(path, "check.json")
    columns = {
        "points": "points",
        "median error": "median_error",
        "bias": "median_bias",
        "elsewhere": "median_error_elsewhere",
        "rank correlation": "rank_correlation",
    }
    rows = [
        {"decoders": title(kind)} | {name: plain(row[key]) for name, key in columns.items()}
        for kind, row in found["accuracy"].items()
    ]
    return pd.DataFrame(rows), [f"{found['what']}: prediction against measurement"]


def tuning(paths: Sequence[Path]) -> Table:
    """The configured settings against the best found; what the best by other costs loses."""
    found = [read(path, "tuning.json") for path in paths]
    rows = []
    for row in (row for one in found for row in one["report"]):
        carried = [row[key] for key in row if key.startswith("best by ") and row[key] is not None]
        rows.append(
            {"decoder": title(row["decoder"])}
            | {key: plain(row[key]) for key in ("costs", "configured", "best found", "regret")}
            | {"carried over": plain(carried[0] if carried else None)}
        )
    texts = dict.fromkeys(f"replays of {one['texts']} recorded texts" for one in found)
    return pd.DataFrame(rows), ["predicted speedup", *texts]


def host(paths: Sequence[Path]) -> Table:
    """Milliseconds of a step on the host, decoders down, contexts across."""
    (path,) = paths
    rows: dict[str, dict] = {}
    for row in read(path, "host.json"):
        cells = rows.setdefault(row["decoder"], {"decoder": title(row["decoder"])})
        cells[f"{row['context']} tokens"] = number(row["ms_per_step"], 2)
    return pd.DataFrame(rows.values()), ["ms of host time per step, at so many tokens of context"]


KINDS: Mapping[str, tuple[Callable[[Sequence[Path]], Table], str]] = {
    "headline": (headline, "summary.json"),
    "counts": (counts, "summary.json"),
    "drafters": (drafters, "summary.json"),
    "verdicts": (verdicts, "summary.json"),
    "agreement": (agreement, "agreement.json"),
    "advice": (advice, "check.json"),
    "tuning": (tuning, "tuning.json"),
    "host": (host, "host.json"),
}
"""By the first word of a marker: what makes the table, and the file that it reads."""
ONE_FOLDER = ("headline", "agreement", "advice", "host")


def read(path: Path, name: str = "summary.json"):
    """Return one of a folder's JSON documents."""
    return json.loads((path / name).read_text("utf-8"))


def setting(path: Path) -> list[str]:
    """Return what a run decoded and how: task and sizes, repeats, number format, temperature."""
    run, prompts = read(path, "run.json"), read(path)["prompts"]
    repeats = f", {run['repeats']} times" if run["repeats"] > 1 else ""
    temperature = run["sampling"]["temperature"]
    return [
        f"{run['task']['name']}, {prompts} prompts x {run['max_new']} tokens{repeats}",
        "stand-in of the reference pair"
        if run["model"]["standin"]
        else f"{run['model']['name']} pair",
        run["model"]["dtype"],
        f"T = {temperature:g}" if temperature else "greedy (T = 0)",
    ]


def label(path: Path) -> str:
    """Return a folder's name in words.

    >>> label(Path("cnndm_t08")), label(Path("t10_bf16")), label(Path("c512")), label(Path("both"))
    ('cnndm, T = 0.8', 'T = 1.0, bf16', '512 tokens', 'both')
    """
    if found := re.fullmatch(r"c(\d+)", path.name):
        return f"{found[1]} tokens"
    found = re.fullmatch(r"(?:(\w+)_)?t(\d)(\d?)(?:_(\w+))?", path.name)
    if not found:
        return path.name.replace("_", " ")
    temperature = f"T = {found[2]}" + (f".{found[3]}" if found[3] else "")
    return ", ".join(filter(None, (found[1], temperature, found[4])))


def title(decoder: str) -> str:
    """Return a decoder's name as a page has it."""
    return NAMES.get(decoder, decoder.replace("_", " "))


def differing(row: Mapping) -> str:
    """Return how many texts differ from greedy's, and the audit's verdict on them."""
    verdicts = row["verdicts"] or {}
    word = "BUG" if "BUG" in verdicts else "numeric ties" if verdicts else "not audited"
    return f"{row['unequal']} of {row['samples']}, {word}"


def verdict(lead: Interval) -> str:
    """Return a lead as a word: "ahead" or "behind" if the whole interval says so."""
    if lead.low is None or lead.high is None or lead.low <= 1 <= lead.high:
        return "inconclusive"
    return "ahead" if lead.low > 1 else "behind"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def interval(found: Mapping | None, digits: int = 2, unit: str = "x") -> str:
    return "-" if found is None else Interval(**found).text(digits, unit)


def plain(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:#.3g}" if isinstance(value, float) else str(value)
