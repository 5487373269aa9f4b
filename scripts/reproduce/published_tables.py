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
"""What tables call decoders, tasks and the GPU's runs."""


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
    return frame, [label(path), *notes(path)]


def speedups(*paths: Path) -> Table:
    """Return a column of speedups over greedy for each run, slowest decoder first, with greedy's
    tokens/s above and Ouroboros' lead below. Runs of different batch sizes are named by these."""
    sizes = [read(path, "run.json")["config"].get("batch_size", 1) for path in paths]
    by_size = len(set(sizes)) == len(paths) > 1
    names = [f"batch size {size}" for size in sizes] if by_size else map(label, paths)
    runs = {name: read(path)["decoders"] for name, path in zip(names, paths, strict=True)}
    ratios: dict[str, list[float]] = {}
    for decoders in runs.values():
        for name in decoders.keys() - {"greedy"}:
            ratios.setdefault(name, []).append(decoders[name]["latency_speedup"]["value"])
    rows = {
        "greedy, tokens/s": {
            run: cell(decoders["greedy"]["output_throughput"], 1) for run, decoders in runs.items()
        }
    }
    for name in sorted(ratios, key=lambda name: gmean(ratios[name])):
        rows[title(name)] = {
            run: cell(decoders[name]["latency_speedup"])
            for run, decoders in runs.items()
            if name in decoders
        }
    rows["Ouroboros' lead over the best other"] = {
        run: cell(best_other(decoders)[1]) for run, decoders in runs.items()
    }
    frame = pd.DataFrame(rows).T.rename_axis("decoder").reset_index()
    return frame, notes(*paths)


def tasks(*paths: Path) -> Table:
    """Return each task's score, Ouroboros' speedup over greedy and its lead over the best other
    decoder at each temperature, and the geometric means of the leads. Scores are those at T = 0."""
    rows: dict[str, dict[str, str]] = {}
    leads: dict[str, list[Interval]] = {}
    for path in paths:
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
    return frame, notes(*paths)


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
    """Return how many completions differ from greedy's and why: near ties, BUG or not audited."""
    differ = samples = 0
    reasons = set()
    for path in paths:
        if (equal_file := path / "equal.json").exists():  # by scripts/gpu/checks.py
            counts = json.loads(equal_file.read_text("utf-8"))[0]["figures"]
            differ, samples = differ + counts["ties"], samples + counts["compared"]
            reasons.add("at near ties")
            continue
        for name, row in read(path)["decoders"].items():
            samples += row["samples"] if name != "greedy" else 0
            if row["unequal"]:
                verdicts = row["verdicts"] or {"not audited": 1}
                differ += row["unequal"]
                reasons |= {w for w in ("BUG", "not audited") if w in verdicts} or {"at near ties"}
    return (
        f"{differ} of {samples} completions differ, {', '.join(sorted(reasons))}"
        if differ
        else EQUAL
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


def notes(*paths: Path) -> list[str]:
    """Return the notes of a table: the runs' settings, with "and" between those that differ, how
    many completions differ, and Ouroboros' smallest speedup on a prompt."""
    worst = min(read(path)["decoders"]["ouroboros"]["worst_speedup"] for path in paths)
    return [*settings(*paths), differing(*paths), f"slowest prompt {worst:.2f}x"]


def settings(*paths: Path) -> list[str]:
    """Return the settings of runs: prompts, new tokens, repeats, models, dtype, and that the
    machine was busy. What differs between the runs is joined by "and"."""
    columns = zip(*map(_settings, paths), strict=True)
    return [
        text for column in columns if (text := " and ".join(filter(None, dict.fromkeys(column))))
    ]


def _settings(path: Path) -> list[str]:
    run, summary = read(path, "run.json"), read(path)
    model = run["model"]
    names, quantised = model_names(model), model.get("quantised") or {}
    repeats = f", {run['repeats']} times" if run["repeats"] > 1 else ""
    shapes = " + ".join(filter(None, (model["standin"] or {}).values()))
    return [
        f"{summary['prompts']} prompts",
        f"up to {run['max_new']} new tokens{repeats}",
        f"stand-in of {names}" if shapes else names,
        f"shapes {shapes}" if shapes else "",
        model["dtype"],
        ", ".join(f"{role} {by}" for role, by in quantised.items()),
        summary.get("busy") or "",
        "interrupted: not all prompts" if run.get("status") == "interrupted" else "",
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
