"""How well predictions agree with measured runs: errors, ranks, and what following them costs.

A prediction rests on greedy's texts of a run and on costs that were measured apart (where none are
given, on the run's own); no decoder's own counts are used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, Sample, sample_frame
from ouroboros.bench.replay.replay import OffTextRates
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.gather import load, run_folders
from ouroboros.bench.run.pair import PairSpec
from ouroboros.bench.tasks.registry import TaskSpec
from ouroboros.costs import CostModel, Costs
from ouroboros.tuning.advise import completed, cost_per_token, kind_of, recorded_evidence


def check(
    place: Path,
    *,
    costs: Costs | None = None,
    rates: Mapping[str, OffTextRates] | None = None,
    task: TaskSpec | None = None,
) -> tuple[pd.DataFrame, str, str]:
    """Return predicted and measured values of each drafter in every run below a folder, what the
    values are, and a sentence about the runs.

    The value is the speedup over greedy; for runs without timing it is tokens per target call's
    cost. More is better. Columns: run, decoder, kind, predicted, measured, error (predicted /
    measured - 1), and `elsewhere`: the errors of each half of the prompts, predicted from the other
    half, () with fewer than two prompts. Other engines are left out.
    """
    folders, rows, titles, timed = run_folders(place), [], [], True
    for path in tqdm(folders, desc="folders", leave=False):
        found = load(path)
        run, timing = found.run, found.run.get("timing", True)
        timed = timed and timing
        titles.append(RunFacts.of(run, found.samples).title)
        spec = PairSpec.from_mapping(run["config"]["model"])
        decoders = {name: run["config"]["decoder"][name] for name in run["decoders"]}
        given = {"costs": costs, "rates": rates, "task": task, "timing": timing}
        evidence = recorded_evidence(path, spec, decoders, **given)
        model, live = CostModel(evidence.costs), completed(found.samples)
        texts = evidence.counts(PLAIN, {}, {})
        examples = list(dict.fromkeys(sample.example for sample in texts))
        halves = set(examples[::2]), set(examples[1::2])
        for name, config in decoders.items():
            if name == PLAIN or kind_of(config).startswith("hf"):
                continue
            plain, ours = texts, evidence.counts(name, config, {})
            if timing:
                plain, ours = ([model.predict(one) for one in side] for side in (plain, ours))
            real = live[PLAIN], live[name]
            of = None if timing else model
            predicted, measured = _value(plain, ours, of), _value(*real, of)
            swapped = (halves, halves[::-1]) if halves[1] else ()
            row = {"run": path.name, "decoder": name, "kind": kind_of(config)}
            row |= {"predicted": predicted, "measured": measured}
            row |= {"error": predicted / measured - 1.0}
            row["elsewhere"] = tuple(
                _value(plain, ours, of, a) / _value(*real, of, b) - 1.0 for a, b in swapped
            )
            rows.append(row)
    runs = f"{len(folders)} runs, the first: " if len(folders) > 1 else ""
    source = "Costs measured apart" if costs else "Costs of the runs themselves"
    about = f"{runs}{titles[0]}. {source if timed else 'Counts alone'}."
    what = "speedup over greedy" if timed else "tokens for what a target call costs"
    return pd.DataFrame(rows), what, about


def _value(
    plain: Sequence[Sample],
    ours: Sequence[Sample],
    model: CostModel | None,
    examples: Collection[str] = (),
) -> float:
    """Return the speedup on some examples (all without any); with a model, tokens per cost."""
    plain, ours = ([s for s in o if not examples or s.example in examples] for o in (plain, ours))
    if model:
        return 1.0 / (cost_per_token(ours, model) or 1.0)
    ratio = speedup(sample_frame(plain), sample_frame(ours))
    assert ratio is not None
    return ratio.value


def accuracy(points: pd.DataFrame) -> pd.DataFrame:
    """Return how well predictions agree with measurements: a row for "all", one for each kind.

    Columns: number of points, median and largest absolute relative error, median signed error,
    median error of predictions from the other prompts, Spearman's rank correlation (three points or
    more), and the regret: the best measured value over that of the point predicted best, less one.
    Raises `ValueError` without points.
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
