"""Compare predictions with measured runs: errors, ranks, and the regret of following them.

A prediction uses only greedy's texts of a run and separately measured costs (without any, the
run's); it does not use the counts of the decoder.
"""

from __future__ import annotations

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
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.costs import CostModel, Costs
from ouroboros.decoder_factory import kind_of
from ouroboros.tuning.advise import cost_per_token
from ouroboros.tuning.evidence import completed, recorded_evidence


def check(
    place: Path,
    *,
    costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    task: TaskSpec | None = None,
) -> tuple[pd.DataFrame, str, str]:
    """Return a table of predicted and measured values for each drafter in every run below a folder,
    the name of the value, and a sentence about the runs.

    The value is the speedup over greedy, or for untimed runs the tokens per cost of a target call;
    higher is better. Columns: run, decoder, kind, predicted, measured, the relative error, and
    `elsewhere`: the error on each half of the prompts when predicted from the other half, () with
    fewer than two prompts. Other engines are left out.
    """
    folders, rows, titles, timed = run_folders(place), [], [], True
    for path in tqdm(folders, desc="folders", leave=False):
        found = load(path)
        run, timing = found.run, found.run.get("timing", True)
        timed = timed and timing
        titles.append(found.facts.title)
        spec = PairSpec.from_mapping(run["config"]["model"])
        decoders = {name: run["config"]["decoder"][name] for name in run["decoders"]}
        given = {"costs": costs, "rates": rates, "task": task, "timing": timing}
        evidence = recorded_evidence(path, spec, decoders, **given)
        model, live = CostModel(evidence.costs), completed(found.samples)
        texts = evidence.counts(PLAIN, {}, {})
        examples = list(dict.fromkeys(sample.example for sample in texts))
        halves = examples[::2], examples[1::2]
        for name, config in decoders.items():
            if name == PLAIN or kind_of(config).startswith("hf"):
                continue
            ours, base = evidence.counts(name, config, {}), texts
            if timing:
                ours, base = ([model.predict(one) for one in side] for side in (ours, base))

            def value(
                side: Sequence[Sequence[Sample]], among: Sequence[str], model=model, timing=timing
            ) -> float:
                own, plain = ([s for s in one if s.example in among] for one in side)
                if not timing:
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
    runs = f"{len(folders)} runs, the first: " if len(folders) > 1 else ""
    source = "Costs measured apart" if costs else "Costs of the runs themselves"
    about = f"{runs}{titles[0]}. {source if timed else 'Counts alone'}."
    what = "speedup over greedy" if timed else "tokens for what a target call costs"
    return pd.DataFrame(rows), what, about


def accuracy(points: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of predictions: a row for "all" and one per kind.

    Columns: number of points, median and largest absolute relative error, median signed error,
    median error in `elsewhere`, Spearman's rank correlation (from three points), and the regret:
    best measured value / measured value of the point predicted best - 1. Raises `ValueError`
    without points.
    """
    if points.empty:
        raise ValueError("nothing was both predicted and measured: give runs with greedy in them")
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
