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
SLOWER = "{slower_share:.0%}, {worst_speedup:.2f}x"  # share of prompts slower, smallest speedup
NEAR_TIES = "{ties} of {compared}, at near ties (scores differ by up to {largest_difference:.2f})"
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
    differ, compared = [], path / "equal.json"
    for name, row in rows:
        if row["unequal"]:
            known = row["verdicts"] or {}
            word = "BUG" if "BUG" in known else "numeric ties" if known else "not audited"
            differ.append(f"{title(name)}: {row['unequal']} of {row['samples']}, {word}")
    if differ and compared.exists():  # by scripts/gpu/checks.py
        known = json.loads(compared.read_text("utf-8"))[0]["figures"]
        differ = [NEAR_TIES.format(**known)]
    rates = sorted(r for _, row in rows if (r := row["repetition_rate"]) is not None)
    repeated = dict.fromkeys(f"{100 * rate:.0f}" for rate in (rates[0], rates[-1]))
    return frame, [
        "speedup over greedy, prefill included [95 % CI]",
        *setting(path),
        f"completions that differ from greedy's: {'; '.join(differ)}"
        if differ
        else "all completions equal greedy's",
        "share of prompts slower with Ouroboros than with greedy, smallest speedup: "
        + SLOWER.format(**decoders["ouroboros"]),
        f"repeated 4-grams {' to '.join(repeated)} %",
    ]


def tasks(*paths: Path) -> Table:
    """Return Ouroboros' score, its speedup over greedy and its lead over the best other decoder, by
    run, and the geometric mean of the leads.

    The best other decoder is the fastest one that is not a variant of Ouroboros; it is chosen on
    the same samples, which favours it.
    """
    rows, leads = [], []
    for path in paths:
        decoders = read(path)["decoders"]
        ours = decoders["ouroboros"]
        others = {
            name: lead
            for name, row in decoders.items()
            if not name.startswith("ouroboros") and (lead := row["latency_vs_ouroboros"])
        }
        name = min(others, key=lambda name: others[name]["value"])
        leads.append(Interval(**others[name]))
        score = next((key for key in SCORES if ours.get(f"score.{key}")), None)
        rows.append(
            {
                "run": label(path),
                "score": f"{score} {cell(ours[f'score.{score}']['value'])}" if score else "-",
                "speedup": cell(ours["latency_speedup"]),
                "best other": title(name),
                "lead over best other": cell(others[name]),
                "slower prompts, worst": SLOWER.format(**ours),
            }
        )
    rows.append({"run": "geometric mean", "lead over best other": cell(vars(over_runs(leads)))})
    dtypes = dict.fromkeys(read(path, "run.json")["model"]["dtype"] for path in paths)
    return pd.DataFrame(rows).fillna(""), [setting(paths[0])[1], *dtypes]


def batches(*paths: Path) -> Table:
    """Return each decoder's speedup over greedy at the same batch size, with a column per batch
    size and the best decoder first, and a last row of greedy's tokens/s."""
    sizes = sorted((read(path, "run.json")["config"]["batch_size"], path) for path in paths)
    found = {size: read(path)["decoders"] for size, path in sizes}
    speedups = {
        name: gmean([one[name]["latency_speedup"]["value"] for one in found.values()])
        for name in found[sizes[0][0]].keys() - {"greedy"}
    }
    rows = [
        {"decoder": title(name)}
        | {str(size): cell(one[name]["latency_speedup"]) for size, one in found.items()}
        for name in sorted(speedups, key=speedups.__getitem__, reverse=True)
    ]
    plain = {str(size): cell(one["greedy"]["output_throughput"], 1) for size, one in found.items()}
    rows.append({"decoder": "greedy, tokens/s"} | plain)
    return pd.DataFrame(rows), [
        "speedup over greedy of the same batch size [95 % CI], by batch size",
        *setting(sizes[0][1]),
    ]


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
    "tasks": tasks,
    "batches": batches,
    "verdicts": verdicts,
}
"""The function of each kind of table: a marker's first word."""


def read(path: Path, name: str = "summary.json"):
    """Return the content of the JSON file `name` in a results folder."""
    return json.loads((path / name).read_text("utf-8"))


def setting(path: Path) -> list[str]:
    """Return a run's settings: task, prompts, new tokens, repeats, models, dtype, temperature, and
    that the machine was busy."""
    run, summary = read(path, "run.json"), read(path)
    model, temperature = run["model"], run["sampling"]["temperature"]
    names, quantised = model_names(model), model.get("quantised") or {}
    repeats = f", {run['repeats']} times" if run["repeats"] > 1 else ""
    prompts = f"{summary['prompts']} prompts x up to {run['max_new']} tokens{repeats}"
    return [
        f"{run['task']['name']}, {prompts}",
        f"stand-in of {names} in the shapes {' + '.join(filter(None, shapes.values()))}"
        if (shapes := model["standin"])
        else names,
        ", ".join([model["dtype"], *(f"{role} {by}" for role, by in quantised.items())]),
        f"T = {temperature:g}" if temperature else "greedy (T = 0)",
        *filter(None, [summary.get("busy")]),
        *["interrupted: not all prompts"] * (run.get("status") == "interrupted"),
    ]


def label(path: Path) -> str:
    """Return the label of a run from its folder's name.

    >>> label(Path("cnndm_t08")), label(Path("humaneval_t0"))
    ('cnndm, T = 0.8', 'humaneval, T = 0')
    """
    task, _, temperature = path.name.partition("_t")
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
