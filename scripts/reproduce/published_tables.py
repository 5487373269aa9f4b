"""The kinds of tables in README and docs, each made from one or more results folders.

Each function takes folders and returns a frame of text cells, at most six columns, and notes for
the line below the table. Numbers come from the folders' summary.json, tuning.json, and so on.
"""

from __future__ import annotations

import json
import re
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
NAMES = {
    "ouroboros": "Ouroboros",
    "ours_cold": "Ouroboros (cold)",
    "ours_task": "Ouroboros (warm)",
    "ouroboros_warm": "Ouroboros (warm)",
    "ouroboros_text": "Ouroboros, no draft model",
    "ouroboros_paper": "published (cold)",
    "ouroboros_paper_warm": "published (warm)",
    "paper_4_cold": "published, gamma 4 (cold)",
    "paper_4_task": "published, gamma 4 (warm)",
    "paper_12_cold": "published, gamma 12 (cold)",
    "paper_12_task": "published, gamma 12 (warm)",
    "speculative_4": "speculative, gamma 4",
    "speculative_12": "speculative, gamma 12",
    "warm": "phrases kept (warm)",
    "no_draft": "no draft model",
    "no_judging": "phrases not scored by the draft",
    "no_tree": "one child per node",
    "one_node_a_draft_call": "one node per draft call",
    "small_tree": "at most 24 nodes",
    "hf_assisted_constant": "transformers' assisted, constant",
    "hf_assisted_defaults": "transformers' assisted, defaults",
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


def counts(*paths: Path) -> Table:
    """Return calls and cost per token of each decoder in each run."""
    rows = [
        {
            "run": label(path) if len(paths) > 1 else "-",
            "decoder": title(name),
            "target calls/token": cell(row["target_forwards_per_token"], 3),
            "draft calls/token": cell(row["draft_forwards_per_token"], 3),
            "cost/token": cell(row["cost_per_token"], 3, ""),
            "Ouroboros' lead": "" if name == "ouroboros" else cell(row.get("cost_vs_ouroboros")),
        }
        for path in paths
        for name, row in read(path)["decoders"].items()
    ]
    costs = f"cost predicted with {read(paths[0])['costs']}, in target calls of one node"
    shared = [part for part in setting(paths[0]) if all(part in setting(path) for path in paths)]
    return pd.DataFrame(rows), [*shared, costs]


def drafters(*paths: Path) -> Table:
    """Return Ouroboros' speedup over greedy and lead over the best other decoder, by run: measured,
    or predicted for runs without times.

    The best other decoder is the fastest one that is not a variant of Ouroboros; it is chosen on
    the same samples, which favours it. Raises `ValueError` for runs with different settings.
    """
    found = [read(path) for path in paths]
    timed = found[0]["timed"]
    notes = [
        setting(path)[2:] if one["timed"] else [f"predicted with {one['costs']}"]
        for path, one in zip(paths, found, strict=True)
    ]
    if any(note != notes[0] for note in notes):
        raise ValueError(f"{paths[0].parent}: runs of different settings or costs in one table")
    measure = "latency" if timed else "predicted"
    rows, leads, speedups = [], [], []
    for path, one in zip(paths, found, strict=True):
        ours = one["decoders"]["ouroboros"]
        others = {
            name: lead
            for name, row in one["decoders"].items()
            if not name.startswith("ouroboros") and (lead := row[f"{measure}_vs_ouroboros"])
        }
        name = min(others, key=lambda name: others[name]["value"])
        leads.append(Interval(**others[name]))
        speedups.append(ours[f"{measure}_speedup"])
        rows.append(
            {
                "run": label(path),
                "tokens/s": cell(ours["output_throughput"], 1) if timed else "-",
                "speedup" if timed else "speedup (predicted)": cell(speedups[-1]),
                "best other": title(name),
                "lead over best other": cell(others[name]),
                "slower prompts, worst": SLOWER.format(**ours) if timed else "-",
                "verdict": "-" if timed else leads[-1].significance,
            }
        )
    if len({read(path, "run.json")["task"]["name"] for path in paths}) > 1:
        mean = over_runs(leads)  # over several tasks, not over lengths of one task
        last = {"run": "geometric mean", "lead over best other": cell(vars(mean))}
        if not timed:
            factor = float(gmean([one["value"] for one in speedups]))
            last |= {"speedup (predicted)": cell(factor, 2, "x"), "verdict": mean.significance}
        rows.append(last)
    return pd.DataFrame(rows).fillna(""), notes[0]


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


def tuning(*paths: Path) -> Table:
    """Return how much slower the configured settings, and those tuned for the other costs, are than
    the best settings found."""
    found, rows = [read(path, "tuning.json") for path in paths], []
    for row in (row for one in found for row in one["report"]):
        carried = (v for key, v in row.items() if key.startswith("best by ") and v is not None)
        cells = {key: row[key] for key in ("costs", "configured", "best found", "regret")}
        cells["tuned for other costs"] = next(carried, None)
        shown = {key: significant(value) for key, value in cells.items()}
        rows.append({"decoder": title(row["decoder"])} | shown)
    texts = dict.fromkeys(f"replays of {one['texts']} recorded texts" for one in found)
    return pd.DataFrame(rows), ["predicted speedup", *texts]


def host(path: Path) -> Table:
    """Return host milliseconds per sequence and step, by decoder (rows) and context length or
    number of sequences (columns)."""
    rows: dict[str, dict] = {}
    for row in read(path, "host.json"):
        cells = rows.setdefault(row["decoder"], {"decoder": title(row["decoder"])})
        alone = row.get("sequences", 1) == 1
        column = f"{row['context']} tokens" if alone else f"{row['sequences']} sequences"
        cells[column] = cell(row["ms_per_step"])
    return pd.DataFrame(rows.values()), ["host time per step in ms, by context length"]


def call_times(path: Path) -> Table:
    """Return ms per call: a row per model, dtype and engine, a column per number of rows."""
    times = pd.read_csv(path / "call_times.csv")
    rows = []
    for name, part in times.groupby(["model", "dtype", "engine"], sort=False):
        ms = part.set_index("rows")["ms"]
        cells = {f"{n} row{'s' * (n > 1)}": cell(ms[n], 1) for n in (1, 4, 8, 16, 64)}
        rows.append({"call": ", ".join(map(str, name))} | cells)
    return pd.DataFrame(rows), ["ms per call", "256 cached tokens"]


def lm_eval(path: Path) -> Table:
    """Return score and speed of each decoder, from lm-evaluation-harness' results files."""
    rows = []
    for found in (read(path, file.name) for file in path.glob("*.json")):
        if speed := found.get("config", {}).get("ouroboros"):  # not provenance.json, hf.json
            (task,) = found["results"].values()
            drafted = speed["speculative_decoding"] or {}
            rows.append(
                {
                    "decoder": title(speed["decoder"]),
                    "chrf": cell(task["chrf,none"]),
                    "tokens/s": cell(speed["output_throughput"], 1),
                    "TTFT (ms)": cell(speed["ttft_ms"], 0),
                    "target calls/token": cell(speed["target_forwards_per_token"], 3),
                    "acceptance length": cell(drafted.get("mean_acceptance_length")),
                }
            )
    rows.sort(key=lambda row: -float(row["target calls/token"]))
    return pd.DataFrame(rows), [
        "completions of every decoder equal those of the harness' hf model",
        "float32",
    ]


KINDS: Mapping[str, tuple[Callable[..., Table], str]] = {
    "headline": (headline, "summary.json"),
    "counts": (counts, "summary.json"),
    "drafters": (drafters, "summary.json"),
    "batches": (batches, "summary.json"),
    "verdicts": (verdicts, "summary.json"),
    "tuning": (tuning, "tuning.json"),
    "host": (host, "host.json"),
    "call_times": (call_times, "call_times.csv"),
    "lm_eval": (lm_eval, "greedy.json"),
}
"""The function of each kind of table (a marker's first word), and the file that it reads."""


def read(path: Path, name: str = "summary.json"):
    """Return the content of the JSON file `name` in a results folder."""
    return json.loads((path / name).read_text("utf-8"))


def setting(path: Path) -> list[str]:
    """Return a run's settings: task, prompts, new tokens, repeats, models, dtype, temperature, and
    that the machine was busy."""
    run, summary = read(path, "run.json"), read(path)
    model, temperature = run["model"], run["sampling"]["temperature"]
    repeats = f", {run['repeats']} times" if run["repeats"] > 1 else ""
    prompts = f"{summary['prompts']} prompts x up to {run['max_new']} tokens{repeats}"
    return [
        f"{run['task']['name']}, {prompts}",
        "stand-in of the " * bool(model["standin"]) + model_names(model),
        model["dtype"],
        f"T = {temperature:g}" if temperature else "greedy (T = 0)",
        *filter(None, [summary.get("busy")]),
    ]


def label(path: Path) -> str:
    """Return the label of a run from its folder's name.

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
    """Return a decoder's name as tables show it."""
    return NAMES.get(decoder, decoder.replace("hf_", "transformers' ").replace("_", " "))


def cell(value: float | Mapping | None, digits: int = 2, unit: str | None = None) -> str:
    """Return a number, or an interval given by its fields (unit "x" by default), as text."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return Interval(**value).text(digits, "x" if unit is None else unit)
    return f"{value:.{digits}f}{unit or ''}"


def significant(value: object) -> str:
    """Return a number with three significant digits, or anything else, as text."""
    if value is None:
        return "-"
    return f"{value:#.3g}" if isinstance(value, float) else str(value)
