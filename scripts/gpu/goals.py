"""Compare a timed run on a GPU with its goals: measured values, bounds, and whether they are met.

    python scripts/gpu/goals.py results/local/gpu/headline_t*/run

writes goals.md into each folder. It reads the run, its costs.json and, if it exists,
costs/kernel_times.json two folders up. A goal without a value or a bound is not judged; speedups
over greedy are judged only if greedy's text repeats little. Nothing is judged in a rehearsal
(`--rehearsal`) or an unfinished run, if a model fell back to slow calls, or without the file
`equal.json`, which shows that texts were compared with greedy's.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import pandas as pd

from ouroboros.bench.metrics.intervals import speedup
from ouroboros.bench.metrics.metrics import METRICS
from ouroboros.bench.metrics.sample import METHOD, PLAIN, Sample, sample_frame, step_s
from ouroboros.bench.report.profile import step_means
from ouroboros.bench.run.folder import ResultsFolder
from ouroboros.costs import CostModel, Costs

FLOOR_SHARES = {"target": 0.92, "draft": 0.85}  # bandwidth floor / time of a call, at least
MOST_REPETITION = 0.25  # of greedy's text, for speedups over greedy
ASSISTED, THEIRS, CHAIN = "hf_assisted", "hf_greedy", "speculative"
Samples = Sequence[Sample]


@dataclass(frozen=True)
class Goal:
    """A measured value, `figure` (None: unavailable), and its bound, `at_least` or `below`; `note`
    explains the value, and `passed` is None if the goal was not judged."""

    name: str
    figure: float | None
    at_least: float | None = None
    below: float | None = None
    passed: bool | None = None
    note: str = ""

    def judged(self) -> Goal:
        """Return the goal with `passed` set, if value and bound are known."""
        if self.figure is None or self.at_least is self.below is None:
            return self
        above = self.at_least is None or self.figure >= self.at_least
        return replace(self, passed=above and (self.below is None or self.figure < self.below))


def goals(
    samples: Samples, costs: Costs, *, judged: bool, idle: Mapping[str, float | None] | None = None
) -> list[Goal]:
    """Return the goals for a run of all decoders, compared with their bounds if `judged`; `idle` is
    the GPU's idle share by decoder, if it was measured."""
    good: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not sample.error:
            good[sample.decoder].append(sample)
    plain, ours = good[PLAIN], good[METHOD]
    predicted = predicted_speedup(plain, ours, costs)
    measured = lead(plain, ours, "decode_s", "decode_tokens")
    reached = measured / predicted if measured and predicted else None
    note = f"measured {measured:.3f}, predicted {predicted:.3f}" if reached else ""
    leads = {name: lead(mine, ours) for name, mine in good.items() if not name.startswith(METHOD)}
    rates = METRICS["conditional_per_position"](good[CHAIN])
    steps = step_means(ours)
    host_share = float((steps["host_ms"] / steps["step_ms"]).iloc[0]) if len(steps) else None
    repetition = METRICS["repetition_rate"](plain)
    varied = repetition is not None and repetition < MOST_REPETITION
    least, why = (3.9, "") if varied else (None, "greedy's text repeats too much")
    found = [
        Goal("ouroboros_over_greedy", leads.get(PLAIN), least, note=why),
        Goal("ouroboros_over_hf_greedy", leads.get(THEIRS), least, note=why),
        over_fastest("assisted", {n: x for n, x in leads.items() if n.startswith(ASSISTED)}, 1.5),
        over_fastest("every_other", {n: leads[n] for n in leads if n not in (PLAIN, THEIRS)}, 1.25),
        Goal("repetition_of_greedy", repetition, below=MOST_REPETITION),
        Goal("agreement_of_draft", rates[0] if rates else None),
        Goal("greedy_of_floor", floor_share(plain, costs), FLOOR_SHARES["target"]),
        Goal("draft_of_floor", draft_floor_share(costs), FLOOR_SHARES["draft"]),
        *(Goal(f"gpu_idle_share_{n}", (idle or {}).get(n), below=0.05) for n in (PLAIN, METHOD)),
        Goal("ouroboros_host_share", host_share, below=0.05),
        Goal("ouroboros_of_predicted_speedup", reached, 0.9, note=note),
    ]
    return [goal.judged() for goal in found] if judged else found


def over_fastest(others: str, leads: Mapping[str, float | None], at_least: float) -> Goal:
    """Return the goal for Ouroboros' lead over the fastest of some decoders; `leads` are by decoder
    (None: unknown), and `others` names the group."""
    known = {decoder: value for decoder, value in leads.items() if value is not None}
    if not known:
        return Goal(f"ouroboros_over_{others}", None, at_least)
    hardest = min(known, key=lambda decoder: known[decoder])
    note = f"{hardest}, fastest of {', '.join(known)}"
    return Goal(f"ouroboros_over_{others}", known[hardest], at_least, note=note)


def draft_floor_share(costs: Costs) -> float | None:
    """Return floor / time of the draft's smallest call, the lowest of all contexts."""
    if costs.draft is None or costs.floor_ms("draft", 1) is None:
        return None
    rows = costs.draft.ms.items()
    return min((costs.floor_ms("draft", int(c)) or 0.0) / row[min(row)] for c, row in rows)


def floor_share(samples: Samples, costs: Costs) -> float | None:
    """Return the minimum time of greedy's steps / their measured time.

    The minimum time is bytes read / bandwidth. The first step of each prompt, which includes the
    prefill, is left out.
    """
    if costs.floor_ms("target", 1) is None:
        return None
    floor_ms = spent_ms = 0.0
    for sample in samples:
        context = sample.prompt_tokens
        for last, step in pairwise(sample.steps):
            context += last.new
            floor_ms += costs.floor_ms("target", context) or 0.0
            spent_ms += 1e3 * step_s(step)
    return floor_ms / spent_ms if spent_ms else None


def predicted_speedup(plain: Samples, samples: Samples, costs: Costs) -> float | None:
    """Predict the speedup over greedy, without first steps, from counts and `costs` alone. None if
    a call is larger than those in the costs."""
    model = CostModel(costs)
    if not plain or not samples or model.why_not([*plain, *samples]):
        return None
    first, second = ([model.predict(sample) for sample in part] for part in (plain, samples))
    return lead(first, second, "decode_s", "decode_tokens")


def lead(others: Samples, ours: Samples, *amount: str) -> float | None:
    """Return the speedup of `ours` over `others` (see `intervals.speedup`); None if unknown."""
    found = speedup(sample_frame(others), sample_frame(ours), *amount)
    return None if found is None else found.value


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--rehearsal", action="store_true", help="judge nothing")
    args = parser.parse_args(words)
    for folder in map(ResultsFolder, args.folders):
        costs = Costs.load(folder.path / "costs.json")
        kernel_times = folder.path.resolve().parents[1] / "costs" / "kernel_times.json"
        idle = json.loads(kernel_times.read_text())["idle_share"] if kernel_times.exists() else None
        run = folder.load_run()
        engines = run["model"]["engines"]
        fallbacks = [f"{r}: {own['fallback']}" for r, own in engines.items() if own["fallback"]]
        compared = run["status"] == "finished" and (folder.path / "equal.json").exists()
        judged = compared and not fallbacks and not args.rehearsal
        found = goals(folder.load_samples(), costs, judged=judged, idle=idle)
        why = "" if compared else ": the texts were not compared"
        verdicts = {True: "reached", False: "missed", None: f"not judged{why}"}
        frame = pd.DataFrame(asdict(goal) | {"passed": verdicts[goal.passed]} for goal in found)
        frame["name"] = frame["name"].str.replace("_", " ")
        notes = "".join(f"\n\nNot as it should be measured: {reason}" for reason in fallbacks)
        folder.write_text("goals.md", frame.to_markdown(index=False, floatfmt=".3f") + notes + "\n")


if __name__ == "__main__":
    main()
