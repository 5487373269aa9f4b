"""Compare the predictions of `ouroboros advise` with measured runs: check.json and check.md.

    python scripts/reproduce/advice_check.py RUNS --costs costs.json --rates advice.json --out DIR

RUNS is a folder of runs. A prediction uses greedy's text of a run, and costs that were measured
separately (without --costs, the run's costs). It does not use the decoder's counts.
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
from ouroboros.bench.run.folder import ResultsFolder, load_costs
from ouroboros.bench.run.pair import PairSpec
from ouroboros.cli.advise import rates_by_decoder
from ouroboros.cli.common import known
from ouroboros.costs import CostModel, Costs
from ouroboros.decoder_factory import kind_of
from ouroboros.tuning.advise import cost_per_token
from ouroboros.tuning.evidence import completed, recorded_evidence


def check(
    place: Path, *, costs: Costs | None = None, rates: Mapping[str, OffTextRates] | None = None
) -> tuple[pd.DataFrame, str, str]:
    """Compare predictions with measurements for each drafter in every run in or below a folder.
    Return a frame, the name of the compared quantity, and a sentence about the runs.

    The quantity is the speedup over greedy, or for untimed runs the tokens per target call of one
    node; higher is better. `costs` and off-text `rates` are those of `recorded_evidence`.

    Columns: run, decoder, kind (see `kind_of`), predicted, measured, error (predicted / measured
    - 1) and elsewhere (the two errors if each half of the prompts is predicted from the other half;
    () with fewer than two prompts). transformers' decoders are left out. Raises `ValueError` if
    only some runs are timed.
    """
    runs, rows = [load(path) for path in run_folders(place)], []
    timed = runs[0].facts.timed
    if any(found.facts.timed != timed for found in runs):
        raise ValueError(f"{place} holds timed and untimed runs: give a folder of one kind")
    for found in tqdm(runs, desc="folders", leave=False):
        run, path = found.run, found.folder
        spec = PairSpec.from_mapping(run["config"]["model"])
        decoders = {name: run["config"]["decoder"][name] for name in run["decoders"]}
        decided = None if timed else ResultsFolder(path).load_costs() or Costs.load("epyc")
        evidence = recorded_evidence(path, spec, decoders, costs=costs or decided, rates=rates)
        model, live = CostModel(evidence.costs), completed(found.samples)
        texts = evidence.counts(PLAIN, {}, {})
        examples = list(dict.fromkeys(sample.example for sample in texts))
        halves = examples[::2], examples[1::2]
        for name, config in decoders.items():
            if name == PLAIN or kind_of(config).startswith("hf"):
                continue
            ours, base = evidence.counts(name, config, {}), texts
            if timed:
                ours, base = ([model.predict(one) for one in side] for side in (ours, base))

            def value(side: Sequence[Sequence[Sample]], among: Sequence[str], model=model) -> float:
                own, plain = ([s for s in one if s.example in among] for one in side)
                if not timed:
                    return 1.0 / (cost_per_token(own, model) or 1.0)
                ratio = speedup(sample_frame(plain), sample_frame(own))
                assert ratio is not None
                return ratio.value

            predicted, measured = (ours, base), (live[name], live[PLAIN])
            swapped = (halves, halves[::-1]) if halves[1] else ()
            row = {"run": path.name, "decoder": name, "kind": kind_of(config)}
            row |= {"predicted": value(predicted, examples), "measured": value(measured, examples)}
            row["error"] = row["predicted"] / row["measured"] - 1.0
            pairs = ((value(predicted, one), value(measured, other)) for one, other in swapped)
            row["elsewhere"] = tuple(before / after - 1.0 for before, after in pairs)
            rows.append(row)
    several = f"{len(runs)} runs, the first: " if len(runs) > 1 else ""
    source = "Costs measured separately" if costs else "Costs of the runs themselves"
    about = f"{several}{runs[0].facts.title}. {source if timed else 'Counts alone'}."
    return pd.DataFrame(rows), "speedup over greedy" if timed else "tokens per target call", about


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
    parser.add_argument("--costs", help="epyc, flat or a file (default: the costs of each run)")
    parser.add_argument("--rates", help="an advice.json whose off-text rates are used")
    parser.add_argument("--out", type=Path, required=True, help="folder of check.json, check.md")
    options = parser.parse_args(words)
    rates = rates_by_decoder(options.rates)
    points, what, about = check(options.runs, costs=load_costs(options.costs), rates=rates)
    found = accuracy(points)
    every = points.sort_values("error", key=abs, kind="stable").drop(columns=["kind", "elsewhere"])
    tables = [own.to_markdown(index=False, floatfmt=".3f") for own in (every, found.reset_index())]
    text = "\n\n".join([f"# Predicted against measured: {what}\n\n{about}", *tables]) + "\n"
    document = {"what": what, "about": about, "accuracy": known(found).to_dict("index")}
    options.out.mkdir(parents=True, exist_ok=True)
    folder = ResultsFolder(options.out)
    folder.write_json("check.json", document | {"points": points.to_dict("records")})
    folder.write_text("check.md", text)
    print(text)


if __name__ == "__main__":
    main()
