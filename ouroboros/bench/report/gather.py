"""Which measurements lie in some folders: runs, sweeps, and runs that several workers shared.

Invariant: samples meet only where their runs have one identity and no sample twice; a second
measurement of the same prompts stays a second measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.report.summary import summarise
from ouroboros.bench.run.costs import recorded_costs
from ouroboros.bench.run.folder import RUN, SAMPLES, ResultsFolder, exists
from ouroboros.bench.verdict.audit_report import Row, load_audit
from ouroboros.costs import CostModel


@dataclass(frozen=True)
class Measured:
    """One measurement: run.json, samples and scores, of one folder or of merged parts. `priced`:
    by which costs its counts are reported."""

    folders: tuple[Path, ...]
    run: dict
    samples: list[Sample]
    scores: dict[tuple[str, str, int], dict[str, float]]
    audit: list[Row] = field(default_factory=list)
    priced: CostModel | None = None
    trees: dict[tuple[str, str, int], list[ProposedTree]] = field(default_factory=dict)

    @property
    def keys(self) -> set[tuple[str, str, int]]:
        """The keys of all samples."""
        return {sample.key for sample in self.samples}


def run_folders(path: Path) -> list[Path]:
    """Return `path` if it holds a run, else every folder below it that does (a sweep's jobs).

    Raises `ValueError` where there is none.
    """
    if (path / RUN).exists():
        return [path]
    found = sorted(file.parent for file in path.rglob(RUN))
    if not found:
        raise ValueError(f"{path} is not a results folder: no {RUN} in it or below it")
    return found


def load(path: Path) -> Measured:
    """Read one results folder. Raises `ValueError` where it holds no samples or is damaged."""
    folder = ResultsFolder(path)
    run = folder.load_run()
    missing = [key for key in ("task", "model", "decoders", "samples_wanted") if key not in run]
    if missing:
        raise ValueError(f"{path / RUN} lacks {', '.join(missing)}: not a run of this project")
    if not exists(path / SAMPLES):
        raise ValueError(f"{path} has no {SAMPLES}: only the folder that measured has it")
    samples = folder.load_samples()
    strange = {sample.decoder for sample in samples} - set(run["decoders"])
    if strange:
        raise ValueError(
            f"{path}: {SAMPLES} has decoders that {RUN} lacks: {', '.join(sorted(strange))}"
        )
    return Measured(
        (path,),
        run,
        samples,
        folder.load_scores(),
        load_audit(folder),
        _priced(folder),
        folder.load_trees(),
    )


def summary_of(one: Measured) -> dict:
    """Return the summary of a measurement."""
    return summarise(
        one.run, one.samples, one.scores, one.audit, priced=one.priced, trees=one.trees
    )


def _priced(folder: ResultsFolder) -> CostModel | None:
    """The costs that were measured with a run, or by which it decided; None without any."""
    costs = recorded_costs(folder)
    if costs is None:
        return None
    named = costs.about.get("name")
    return CostModel(costs, f"the costs {named!r}" if named else "the costs measured with the run")


def merge(found: Iterable[Measured]) -> list[Measured]:
    """Join the parts of one run (same identity, no sample in common), in the order given."""
    merged: list[Measured] = []
    for part in found:
        for index, whole in enumerate(merged):
            if _is_part(whole, part):
                merged[index] = _joined(whole, part)
                break
        else:
            merged.append(part)
    return merged


def _is_part(whole: Measured, part: Measured) -> bool:
    identity = part.run.get("identity")
    same = identity is not None and identity == whole.run.get("identity")
    return same and not whole.keys & part.keys


def _joined(whole: Measured, part: Measured) -> Measured:
    samples = [*whole.samples, *part.samples]
    run = whole.run
    machines = run.get("machines") or [run["provenance"]["machine"]]
    facts = {
        "parts": run.get("parts", 1) + 1,
        "machines": [*machines, part.run["provenance"]["machine"]],
        "status": _status([run["status"], part.run["status"]]),
        "resumed": run["resumed"] + part.run["resumed"],
        "samples_wanted": _wanted(run["samples_wanted"], part.run["samples_wanted"], len(samples)),
    }
    prompts = _wanted(
        run["task"]["prompts"], part.run["task"]["prompts"], len({s.example for s in samples})
    )
    return replace(
        whole,
        folders=(*whole.folders, *part.folders),
        run={**run, **facts, "task": {**run["task"], "prompts": prompts}},
        samples=samples,
        scores={**whole.scores, **part.scores},
        audit=[*whole.audit, *part.audit],
        trees={**whole.trees, **part.trees},
    )


def _wanted(one: int, other: int, have: int) -> int:
    """How many were wanted in all: a part's run.json may state the whole's number or its own."""
    return max(one, other) if have <= max(one, other) else one + other


def _status(statuses: Sequence[str]) -> str:
    return next((status for status in statuses if status != "finished"), "finished")
