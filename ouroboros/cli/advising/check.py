"""Predicted against measured, for every decoder of every run in a folder.

A prediction rests on greedy's texts of that run and on costs that were measured apart (where none
are given, on those of the run itself, and this is said); no decoder's own counts are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pandas as pd
from tabulate import tabulate
from tqdm import tqdm

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.sample import PLAIN, Sample
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.report.gather import Measured, load, run_folders
from ouroboros.bench.report.plots import style
from ouroboros.bench.run.costs import load_costs, recorded_costs
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.cli.advising.inputs import given_costs, source_of
from ouroboros.cli.advising.search import kind_of
from ouroboros.costs import UNTIMED, CostModel, Costs
from ouroboros.tuning.accuracy import Accuracy, Point, accuracy
from ouroboros.tuning.plots import predicted_dots
from ouroboros.tuning.predict import cost_per_token

Samples = Sequence[Sample]
Value = Callable[[Samples, Samples], float]
"""What is predicted and measured, more being better, from greedy's samples and a decoder's."""


def check_runs(config: dict, *, task: dict | None) -> dict:
    """Print, write and return how well predictions agree with the runs in `check`."""
    given, points, titles = given_costs(config), [], []
    folders = run_folders(Path(config["check"]))
    for path in tqdm(folders, desc="folders", leave=False):
        measured = load(path)
        titles.append(RunFacts.of(measured.run, measured.samples).title)
        own = {**config, "model": measured.run["config"]["model"], "runs": str(path)}
        own |= {"costs": None, "machine": {**config["machine"], "bandwidth_gb_s": None}}
        own["decoder"] = measured.run["config"]["decoder"]
        points += points_of(own, measured, given, task=task)
    timing = all(ResultsFolder(path).load_run().get("timing", True) for path in folders)
    what = "speedup over greedy" if timing else "tokens for what a target call costs"
    costs = "costs measured apart" if given else "costs of the runs themselves"
    runs = f"{len(folders)} runs, the first: " if len(folders) > 1 else ""
    about = f"{runs}{titles[0]}. {costs if timing else 'counts alone'}.".replace(". c", ". C")
    found = summed(points)
    print(f"{what}\n\n{tabulate(rows(points), headers='keys', floatfmt='.3f')}\n")
    print(table(found))
    if config["results_dir"]:
        write(Path(config["results_dir"]), points, found, what=what, about=about)
    plain = {name: asdict(own) for name, own in found.items()}
    return {"what": what, "about": about, "accuracy": plain}


def points_of(
    config: dict, measured: Measured, costs: Costs | None, *, task: dict | None
) -> list[Point]:
    """Return predicted and measured values of each drafter of a run."""
    folder = ResultsFolder(config["runs"])
    source = source_of(config, folder, task=task)
    timing = measured.run.get("timing", True)
    if costs is None:
        found = load_costs(folder.path) if timing else recorded_costs(folder)
        costs = found or Costs.load(UNTIMED)
    value = _speedup if timing else partial(_tokens_per_cost, costs=costs)
    good = [sample for sample in measured.samples if not sample.error]
    base = [sample for sample in good if sample.decoder == PLAIN]
    plain = _timed(source.counts(PLAIN, {}), costs if timing else None)
    points = []
    for name in tqdm(measured.run["decoders"], desc=Path(config["runs"]).name, leave=False):
        kind = kind_of(config["decoder"][name])
        if name == PLAIN or kind.startswith("hf"):
            continue
        ours = _timed(source.counts(name, {}), costs if timing else None)
        real = [sample for sample in good if sample.decoder == name]
        both = value(plain, ours), value(base, real)
        elsewhere = _elsewhere((plain, ours), (base, real), value)
        points.append(Point(Path(config["runs"]).name, name, kind, *both, elsewhere))
    return points


def summed(points: Sequence[Point]) -> dict[str, Accuracy]:
    """Return the accuracy of all points and of each kind of decoder."""
    kinds = dict.fromkeys(point.kind for point in points)
    return {"all": accuracy(points)} | {
        kind: accuracy([point for point in points if point.kind == kind]) for kind in kinds
    }


def rows(points: Sequence[Point]) -> list[dict]:
    """Return a table's rows, the worst prediction last."""
    return [
        {
            "run": point.run,
            "decoder": point.decoder,
            "predicted": point.predicted,
            "measured": point.measured,
            "error": point.error,
        }
        for point in sorted(points, key=lambda point: abs(point.error))
    ]


def table(found: dict[str, Accuracy], form: str = "simple") -> str:
    """Return the accuracies as a table."""
    own = [{"decoder": name, **asdict(one)} for name, one in found.items()]
    return tabulate(own, headers="keys", floatfmt=".3f", missingval="-", tablefmt=form)


def write(
    path: Path, points: Sequence[Point], found: dict[str, Accuracy], *, what: str, about: str
) -> None:
    """Write check.json, check.md and check.png."""
    folder = ResultsFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    values = {"what": what, "about": about, "points": [asdict(point) for point in points]}
    folder.write_json("check.json", values | {"accuracy": {k: asdict(v) for k, v in found.items()}})
    each = tabulate(rows(points), headers="keys", floatfmt=".3f", tablefmt="github")
    text = (
        f"# Predicted against measured: {what}\n\n{about}\n\n{table(found, 'github')}\n\n{each}\n"
    )
    folder.write_text("check.md", text)
    figure = predicted_dots(pd.DataFrame([asdict(point) for point in points]), what=what)
    style.save(style.with_title(figure, "Predicted against measured", about), path / "check.png")


def _elsewhere(
    predicted: tuple[Samples, Samples], real: tuple[Samples, Samples], value: Value
) -> tuple[float, ...]:
    """Return the errors of each half of the prompts, predicted from the other half."""
    names = list(dict.fromkeys(sample.example for sample in predicted[0]))
    halves = set(names[::2]), set(names[1::2])
    if not halves[1]:
        return ()

    def of(pair: tuple[Samples, Samples], half: set[str]) -> float:
        plain, ours = ([s for s in samples if s.example in half] for samples in pair)
        return value(plain, ours)

    return tuple(
        of(predicted, one) / of(real, other) - 1.0 for one, other in (halves, halves[::-1])
    )


def _timed(samples: Samples, costs: Costs | None) -> Samples:
    return samples if costs is None else [CostModel(costs).predict(sample) for sample in samples]


def _speedup(plain: Samples, samples: Samples) -> float:
    found = speedup(plain, samples)
    assert found is not None
    return found.value


def _tokens_per_cost(plain: Samples, samples: Samples, *, costs: Costs) -> float:
    cost = cost_per_token(samples, costs)
    assert cost
    return 1.0 / cost
