"""The kinds of tables in README and docs, each made from one or more results folders.

Each function takes folders and returns a frame of text cells, at most six columns, and notes for
the line below the table. Numbers come from the folders' summary.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import gmean

from ouroboros.bench.metrics.intervals import Interval
from ouroboros.bench.run.pair import model_names

Table = tuple[pd.DataFrame, list[str]]
EQUAL = "all completions equal greedy's"
SCORES = ("pass@1", "exact_match", "bleu", "rougeL")
"""Names of task scores; a table shows the first that a run has."""
NAMES = {
    "ouroboros": "Ouroboros",
    "ouroboros_text": "Ouroboros (no draft)",
    "ouroboros_paper": "published (cold)",
    "ouroboros_paper_warm": "published (warm)",
    "hf_assisted_constant": "transformers' assisted, constant",
    "llama_cpp": "llama.cpp",
    "llama_cpp_lookup": "llama.cpp, prompt lookup",
    "llama_cpp_q4_1": "llama.cpp, Q4_1",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "mbpp": "MBPP",
    "cnndm": "CNN/DM",
    "wmt16": "WMT16",
    "specbench": "Spec-Bench",
    "pair": "draft of Yi 6B's size",
    "distilled": "distilled draft",
}


def headline(path: Path) -> Table:
    """Return tokens/s, speedup, lead and TTFT of every decoder of one timed run, slowest first."""
    decoders = read(path)["decoders"]
    rows = sorted(decoders.items(), key=lambda item: item[1]["output_throughput"] or 0)
    frame = pd.DataFrame(
        {
            "decoder": title(name),
            "tokens/s": cell(row["output_throughput"], 1),
            "speedup": cell(row["latency_speedup"]),
            "Ouroboros' lead": "" if name == "ouroboros" else cell(row["latency_vs_ouroboros"]),
            "TTFT (ms)": cell(row["ttft_ms"], 0),
        }
        for name, row in rows
    )
    return frame, [label(path), *setting(path), differing(path)]


def speedups(*paths: Path) -> Table:
    """Return each decoder's speedup over greedy, with a column per run and the slowest decoder
    first; greedy's tokens/s above them, Ouroboros' lead over the best other decoder below."""
    sizes = {path: read(path, "run.json")["config"].get("batch_size", 1) for path in paths}
    sized = len(set(sizes.values())) == len(paths) > 1
    found = {f"batch size {sizes[p]}" if sized else label(p): read(p)["decoders"] for p in paths}
    values: dict[str, list[float]] = {}
    for decoders in found.values():
        for name in decoders.keys() - {"greedy"}:
            values.setdefault(name, []).append(decoders[name]["latency_speedup"]["value"])
    rows = [
        (
            "greedy, tokens/s",
            {k: cell(d["greedy"]["output_throughput"], 1) for k, d in found.items()},
        )
    ]
    for name in sorted(values, key=lambda name: gmean(values[name])):
        rows.append(
            (
                title(name),
                {
                    k: cell(d[name]["latency_speedup"]) if name in d else "-"
                    for k, d in found.items()
                },
            )
        )
    rows.append(
        (
            "Ouroboros' lead over the best other",
            {k: cell(best_other(d)[1]) for k, d in found.items()},
        )
    )
    frame = pd.DataFrame([{"decoder": name} | cells for name, cells in rows])
    return frame, [*setting(paths[0]), differing(*paths)]


def tasks(*paths: Path) -> Table:
    """Return each task's score, Ouroboros' speedup over greedy and its lead over the best other
    decoder at each temperature, and the geometric means of the leads. Scores are those at T = 0."""
    rows: dict[str, dict[str, str]] = {}
    leads: dict[str, list[Interval]] = {}
    for path in sorted(paths, key=lambda path: path.name.rpartition("_t")[2]):
        task, _, temperature = label(path).partition(", ")
        decoders = read(path)["decoders"]
        ours, row = decoders["ouroboros"], rows.setdefault(task, {"task": task})
        score = next((key for key in SCORES if ours.get(f"score.{key}")), None)
        row.setdefault(
            "score", f"{score} {cell(ours[f'score.{score}']['value'])}" if score else "-"
        )
        row[f"speedup, {temperature}"] = cell(ours["latency_speedup"])
        name, lead = best_other(decoders)
        row[f"lead, {temperature}"] = f"{cell(lead)} {title(name)}"
        leads.setdefault(f"lead, {temperature}", []).append(Interval(**lead))
    mean = {name: cell(vars(over_runs(found))) for name, found in leads.items()}
    frame = pd.DataFrame([*rows.values(), {"task": "geometric mean"} | mean]).fillna("")
    return frame, [*setting(paths[0]), differing(*paths)]


def best_other(decoders: Mapping) -> tuple[str, Mapping]:
    """Return the name of the fastest decoder that is not a variant of Ouroboros, and Ouroboros'
    lead over it. It is chosen on the same samples, which favours it."""
    others = {
        name: row["latency_vs_ouroboros"]
        for name, row in decoders.items()
        if not name.startswith("ouroboros") and row["latency_vs_ouroboros"]
    }
    return min(others.items(), key=lambda other: other[1]["value"])


def differing(*paths: Path) -> str:
    """Return how many completions differ from greedy's, and whether these are numeric ties."""
    differ = samples = 0
    words = set()
    for path in paths:
        if (compared := path / "equal.json").exists():  # by scripts/gpu/checks.py
            known = json.loads(compared.read_text("utf-8"))[0]["figures"]
            differ, samples = differ + known["ties"], samples + known["compared"]
            words.add("at near ties")
            continue
        for name, row in read(path)["decoders"].items():
            samples += row["samples"] if name != "greedy" else 0
            if row["unequal"]:
                verdicts = row["verdicts"] or {}
                differ += row["unequal"]
                words.add("BUG" if "BUG" in verdicts else "at ties" if verdicts else "not audited")
    return (
        f"{differ} of {samples} completions differ, {', '.join(sorted(words))}" if differ else EQUAL
    )


def over_runs(ratios: Sequence[Interval]) -> Interval:
    """Return the geometric mean of ratios from independent runs. Its interval follows from the
    variances of their logarithms, and is missing if a ratio has no interval."""
    value = float(gmean([ratio.value for ratio in ratios]))
    if any(ratio.low is None or ratio.high is None for ratio in ratios):
        return Interval(value)
    widths = np.log([ratio.high / ratio.low for ratio in ratios if ratio.low and ratio.high])
    half = float(np.sqrt((widths**2).sum())) / 2 / len(ratios)
    return Interval(value, value * float(np.exp(-half)), value * float(np.exp(half)))


def verdicts(*paths: Path) -> Table:
    """Return how many completions differ from standard decoding's, and the audit's verdicts."""
    rows = []
    for path in paths:
        others = [row for name, row in read(path)["decoders"].items() if name != "greedy"]
        bugs = sum((row["verdicts"] or {}).get("BUG", 0) for row in others)
        differ = sum(row["unequal"] or 0 for row in others)
        audited = all(row["verdicts"] or not row["unequal"] for row in others)
        rows.append(
            {
                "run": label(path),
                "decoders": str(len(others)),
                "completions": str(sum(row["samples"] for row in others)),
                "differ": str(differ),
                "numeric ties": str(differ - bugs) if audited else "-",
                "BUG": str(bugs) if audited else "-",
            }
        )
    return pd.DataFrame(rows), ["completions of all decoders but greedy, compared with greedy's"]


KINDS: Mapping[str, Callable[..., Table]] = {
    "headline": headline,
    "speedups": speedups,
    "tasks": tasks,
    "verdicts": verdicts,
}
"""The function of each kind of table: a marker's first word."""


def read(path: Path, name: str = "summary.json"):
    """Return the content of the JSON file `name` in a results folder."""
    return json.loads((path / name).read_text("utf-8"))


def setting(path: Path) -> list[str]:
    """Return a run's settings: prompts, new tokens, repeats, models, dtype, and that the machine
    was busy."""
    run, summary = read(path, "run.json"), read(path)
    model = run["model"]
    names, quantised = model_names(model), model.get("quantised") or {}
    repeats = f", {run['repeats']} times" if run["repeats"] > 1 else ""
    shapes = " + ".join(filter(None, (model["standin"] or {}).values()))
    return [
        f"{summary['prompts']} prompts x up to {run['max_new']} tokens{repeats}",
        f"stand-in of {names} in the shapes {shapes}" if shapes else names,
        ", ".join([model["dtype"], *(f"{role} {by}" for role, by in quantised.items())]),
        *filter(None, [summary.get("busy")]),
        *["interrupted: not all prompts"] * (run.get("status") == "interrupted"),
    ]


def label(path: Path) -> str:
    """Return the label of a run from its folder's name.

    >>> label(Path("cnndm_t08")), label(Path("humaneval_t0"))
    ('CNN/DM, T = 0.8', 'HumanEval, T = 0')
    """
    task, _, temperature = path.name.partition("_t")
    task = NAMES.get(task, task)
    return f"{task}, T = {'.'.join(temperature)}" if temperature.isdigit() else path.name


def title(decoder: str) -> str:
    """Return a decoder's name as tables show it."""
    return NAMES.get(decoder, decoder.replace("hf_", "transformers' ").replace("_", " "))


def cell(value: float | Mapping | None, digits: int = 2, unit: str | None = None) -> str:
    """Return a number, or an interval given by its fields (unit "x" by default), as text."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return Interval(**value).text(digits, "x" if unit is None else unit)
    return f"{value:.{digits}f}{unit or ''}"
