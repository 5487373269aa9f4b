"""How well predictions agree with measured runs: errors, ranks, and what following them costs.

A prediction rests on greedy's texts of a run and on costs that were measured apart (where none are
given, on the run's own); no decoder's own counts are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.costs import CostModel
from ouroboros.tuning.advise import Evidence, kind_of
from ouroboros.tuning.predict import cost_per_token


def check_run(
    run: str,
    samples: Sequence[Sample],
    evidence: Evidence,
    decoders: Mapping[str, Mapping],
    *,
    timing: bool = True,
) -> pd.DataFrame:
    """Return predicted and measured values of each drafter of a run (`decoders`: configs by name).

    The value is the speedup over greedy; without `timing` it is tokens per target call's cost. More
    is better. Columns: run, decoder, kind, predicted, measured, error (predicted / measured - 1),
    and `elsewhere`: the errors of each half of the prompts, predicted from the other half, () with
    fewer than two prompts. Other engines are left out.
    """

    model = CostModel(evidence.costs)

    def value(pair: tuple[Sequence[Sample], Sequence[Sample]], of: set[str] | None = None) -> float:
        plain, ours = ([s for s in side if of is None or s.example in of] for side in pair)
        ratio = speedup(plain, ours) if timing else None
        cost = None if timing else cost_per_token(ours, model)
        assert ratio or cost
        return ratio.value if ratio else 1.0 / (cost or 1.0)

    def replayed(name: str, config: Mapping) -> list[Sample]:
        counts = evidence.counts(name, config, {})
        return [model.predict(sample) for sample in counts] if timing else counts

    real: dict[str, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            real.setdefault(sample.decoder, []).append(sample)
    plain, rows = replayed(PLAIN, {}), []
    names = list(dict.fromkeys(sample.example for sample in plain))
    halves = set(names[::2]), set(names[1::2])
    for name, config in decoders.items():
        kind = kind_of(config)
        if name == PLAIN or kind.startswith("hf"):
            continue
        ours, live = (plain, replayed(name, config)), (real[PLAIN], real[name])
        predicted, measured = value(ours), value(live)
        swapped = (halves, halves[::-1]) if halves[1] else ()
        rows.append(
            {
                "run": run,
                "decoder": name,
                "kind": kind,
                "predicted": predicted,
                "measured": measured,
                "error": predicted / measured - 1.0,
                "elsewhere": tuple(value(ours, a) / value(live, b) - 1.0 for a, b in swapped),
            }
        )
    return pd.DataFrame(rows)


def accuracy(points: pd.DataFrame) -> pd.DataFrame:
    """Return how well predictions agree with measurements: a row for "all", one for each kind.

    Columns: number of points, median and largest absolute relative error, median signed error,
    median error of predictions from the other prompts, Spearman's rank correlation (three points or
    more), and the regret: the best measured value over that of the point predicted best, less one.
    Raises `ValueError` without points.
    """
    if points.empty:
        raise ValueError("nothing was both predicted and measured: give runs with greedy in them")
    groups = {"all": points} | dict(iter(points.groupby("kind", sort=False)))
    rows = {}
    for kind, own in groups.items():
        elsewhere = [abs(error) for errors in own.elsewhere for error in errors]
        rank = spearmanr(own.predicted, own.measured).statistic if len(own) > 2 else np.nan
        rows[kind] = {
            "points": len(own),
            "median_error": float(own.error.abs().median()),
            "largest_error": float(own.error.abs().max()),
            "median_bias": float(own.error.median()),
            "median_error_elsewhere": float(np.median(elsewhere)) if elsewhere else None,
            "rank_correlation": None if np.isnan(rank) else float(rank),
            "regret": own.measured.max() / own.measured[own.predicted.idxmax()] - 1.0,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("decoder")
