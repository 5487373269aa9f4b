"""Compare the predictions of `ouroboros advise` with measured runs: check.json and check.md.

    python scripts/reproduce/advice_check.py RUNS --costs costs.json --rates advice.json --out DIR

RUNS is a folder of timed runs. A prediction uses greedy's text of a run, and costs that were
measured separately. It does not use the decoder's counts.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, Sample, sample_frame
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.bench.run.pair import PairSpec
from ouroboros.cli.advise import rates_by_decoder
from ouroboros.cli.common import known
from ouroboros.costs import CostModel, Costs
from ouroboros.decoder_factory import kind_of
from ouroboros.tuning.evidence import completed, recorded_evidence

WHAT = "speedup over greedy"


def check(
    place: Path, costs: Costs, rates: Mapping[str, OffTextRates] | None = None
) -> tuple[pd.DataFrame, str]:
    """Compare the predicted speedups over greedy with the measured ones, for each drafter in every
    timed run in or below a folder. Return a frame, and a sentence about the runs.

    `costs` and off-text `rates` are those of `recorded_evidence`. Columns: run, decoder, kind (see
    `kind_of`), predicted, measured, error (predicted / measured - 1) and elsewhere (the two errors
    if each half of the prompts is predicted from the other half; () with fewer than two prompts).
    transformers' decoders are left out. Raises `ValueError` if a run has no times.
    """
    runs, rows = [load(path) for path in run_folders(place)], []
    for found in tqdm(runs, desc="folders", leave=False):
        run, path = found.run, found.folder
        if not found.facts.timed:
            raise ValueError(f"{path} has no times to compare with: measure with timing=true")
        spec = PairSpec.from_mapping(run["config"]["model"])
        decoders = {name: run["config"]["decoder"][name] for name in run["decoders"]}
        evidence = recorded_evidence(path, spec, decoders, costs=costs, rates=rates)
        model, live = CostModel(evidence.costs), completed(found.samples)
        texts = evidence.counts(PLAIN, {}, {})
        examples = list(dict.fromkeys(sample.example for sample in texts))
        halves = examples[::2], examples[1::2]
        for name, config in decoders.items():
            if name == PLAIN or kind_of(config).startswith("hf"):
                continue

            def ratio(side: Sequence[Sequence[Sample]], among: Sequence[str]) -> float:
                own, plain = ([s for s in one if s.example in among] for one in side)
                value = speedup(sample_frame(plain), sample_frame(own))
                assert value is not None
                return value.value

            counted = evidence.counts(name, config, {}), texts
            predicted = [[model.predict(one) for one in side] for side in counted]
            measured = live[name], live[PLAIN]
            swapped = (halves, halves[::-1]) if halves[1] else ()
            row = {"run": path.name, "decoder": name, "kind": kind_of(config)}
            row |= {"predicted": ratio(predicted, examples), "measured": ratio(measured, examples)}
            row["error"] = row["predicted"] / row["measured"] - 1.0
            pairs = ((ratio(predicted, one), ratio(measured, other)) for one, other in swapped)
            row["elsewhere"] = tuple(before / after - 1.0 for before, after in pairs)
            rows.append(row)
    several = f"{len(runs)} runs, the first: " if len(runs) > 1 else ""
    return pd.DataFrame(rows), f"{several}{runs[0].facts.title}. Costs measured separately."


def accuracy(points: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of the predictions in `points`, the frame of `check`: a row for "all",
    and one for each kind of decoder.

    Columns: points (their number); median_error and largest_error, absolute; median_bias, the
    median signed error; median_error_elsewhere, of `elsewhere` (None if empty); rank_correlation,
    Spearman's (None with fewer than three points); and regret: best measured value / measured value
    of the point with the best prediction - 1. Exits if there are no points.
    """
    if points.empty:
        raise SystemExit("nothing was both predicted and measured: give runs with greedy in them")
    rows = {}
    for kind, own in {"all": points, **dict(iter(points.groupby("kind", sort=False)))}.items():
        best: Any = own.predicted.idxmax()
        elsewhere = [abs(error) for errors in own.elsewhere for error in errors]
        rank = spearmanr(own.predicted, own.measured).statistic if len(own) > 2 else np.nan
        rows[kind] = {
            "points": len(own),
            "median_error": float(own.error.abs().median()),
            "largest_error": float(own.error.abs().max()),
            "median_bias": float(own.error.median()),
            "median_error_elsewhere": float(np.median(elsewhere)) if elsewhere else None,
            "rank_correlation": None if np.isnan(rank) else float(rank),
            "regret": own.measured.max() / own.measured[best] - 1.0,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("decoder")


def main(words: Sequence[str] | None = None) -> None:
    """Check the runs of a folder, print both tables and write them."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a results folder, or a folder with some")
    parser.add_argument("--costs", required=True, help="epyc, flat or a file")
    parser.add_argument("--rates", help="an advice.json whose off-text rates are used")
    parser.add_argument("--out", type=Path, required=True, help="folder of check.json, check.md")
    options = parser.parse_args(words)
    rates = rates_by_decoder(options.rates)
    points, about = check(options.runs, Costs.load(options.costs), rates)
    found = accuracy(points)
    every = points.sort_values("error", key=abs, kind="stable").drop(columns=["kind", "elsewhere"])
    tables = [own.to_markdown(index=False, floatfmt=".3f") for own in (every, found.reset_index())]
    text = "\n\n".join([f"# Predicted against measured: {WHAT}\n\n{about}", *tables]) + "\n"
    document = {"what": WHAT, "about": about, "accuracy": known(found).to_dict("index")}
    options.out.mkdir(parents=True, exist_ok=True)
    folder = ResultsFolder(options.out)
    folder.write_json("check.json", document | {"points": points.to_dict("records")})
    folder.write_text("check.md", text)
    print(text)


if __name__ == "__main__":
    main()
