"""Which measurements lie in some folders: runs, sweeps, and runs that several workers shared.

Invariant: samples are merged only where their runs have one identity, one code and no sample twice;
a second measurement of the same prompts stays a second measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from ouroboros.audit.report import Row
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.report.facts import RunFacts
from ouroboros.bench.run.audit import load_audit
from ouroboros.bench.run.folder import RUN, SAMPLES, ResultsFolder, stored
from ouroboros.bench.run.identity import environment
from ouroboros.costs import CostModel

Key = tuple[str, str, int]
MACHINE = ("cpu", "threads", "gpus")
"""What parts of one run may differ in."""


@dataclass(frozen=True)
class Measured:
    """One measurement: run.json, samples and scores of one folder or of merged parts.

    `priced` holds the costs by which its counts become seconds, `trees` the recorded trees of a
    sample's steps, `notes` what a reader must know of the folders.
    """

    folders: tuple[Path, ...]
    run: dict
    samples: list[Sample]
    scores: dict[Key, dict[str, float]] = field(default_factory=dict)
    audit: list[Row] = field(default_factory=list)
    priced: CostModel | None = None
    trees: dict[Key, list[ProposedTree]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def run_folders(path: Path) -> list[Path]:
    """Return `path` if it holds a run, else every folder below it that does (a sweep's jobs).

    Raises `ValueError` where there is none.
    """
    found = [path] if (path / RUN).exists() else sorted(one.parent for one in path.rglob(RUN))
    if not found:
        raise ValueError(f"{path} is not a results folder: no {RUN} in it or below it")
    return found


def load(path: Path) -> Measured:
    """Read one results folder. Raises `ValueError`, one line that names the folder, where it holds
    no samples or is damaged."""
    folder = ResultsFolder(path)
    try:
        run, samples = folder.load_run(), folder.load_samples()
        if not stored(path / SAMPLES).exists():
            raise ValueError(f"{path} has no {SAMPLES}: only the folder that measured has it")
        if unknown := {sample.decoder for sample in samples} - set(run["decoders"]):
            names = ", ".join(sorted(unknown))
            raise ValueError(f"{SAMPLES} has decoders that {RUN} lacks: {names}")
        costs = folder.load_costs()
        name = costs.about.get("name") if costs else None
        words = f"the costs {name!r}" if name else "the costs measured with the run"
        priced = CostModel(costs, words) if costs else None
        audit, trees, scores = load_audit(folder), folder.load_trees(), folder.load_scores()
        facts = RunFacts.of(run, samples, words if costs else None)
        for part in fields(facts):
            value = getattr(facts, part.name)
            if part.type in ("str", "int", "bool") and type(value).__name__ != part.type:
                raise TypeError(f"{part.name} is {value!r}")
    except Exception as error:  # whatever damaged files raise
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is damaged ({error})"
        raise ValueError(f"{path} {what}: restore the folder or leave it out") from error
    return Measured((path,), run, samples, scores, audit, priced, trees)


def merge(found: Iterable[Measured]) -> list[Measured]:
    """Join the parts of one run (same identity, no sample in common), in the order given.

    Parts that were measured by other code or versions stay apart, with a note on each; other
    machines are named in the title.
    """
    merged: list[Measured] = []
    for part in found:
        identity, keys = part.run.get("identity"), {sample.key for sample in part.samples}
        for index, whole in enumerate(merged):
            same = identity is not None and identity == whole.run.get("identity")
            if not same or not keys.isdisjoint(sample.key for sample in whole.samples):
                continue
            if changed := code_changes(whole.run, part.run):
                other = (
                    f"a part of {whole.folders[0].name} that was measured differently: {changed}"
                )
                part = replace(part, notes=(f"Not merged: {other}.",))
                continue
            merged[index] = _joined(whole, part)
            break
        else:
            merged.append(part)
    return merged


def code_changes(run: Mapping, other: Mapping) -> str:
    """Return how code and versions differ between two run.json, as text; "" if they do not."""
    before, now = environment(run), environment(other)
    names = [name for name in before if name not in MACHINE and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]} there, {now[name]} here" for name in names)


def _joined(whole: Measured, part: Measured) -> Measured:
    run, other, samples = whole.run, part.run, [*whole.samples, *part.samples]

    def wanted(one: int, two: int, have: int) -> int:
        """How many were asked for: a part's run.json may state the whole's number or its own."""
        return max(one, two) if have <= max(one, two) else one + two

    prompts = len({sample.example for sample in samples})
    prompts = wanted(run["task"]["prompts"], other["task"]["prompts"], prompts)
    machines = run.get("machines") or [run["provenance"]["machine"]]
    ours, theirs = (one.priced and one.priced.costs for one in (whole, part))
    priced = f"Costs and predictions of all parts are by the costs of {whole.folders[0].name}."
    notes = dict.fromkeys((*whole.notes, *part.notes, *[priced] * (ours != theirs)))
    joined = {
        "parts": run.get("parts", 1) + 1,
        "machines": [*machines, other["provenance"]["machine"]],
        "status": other.get("status") if run.get("status") == "finished" else run.get("status"),
        "resumed": run.get("resumed", 0) + other.get("resumed", 0),
        "samples_wanted": wanted(run["samples_wanted"], other["samples_wanted"], len(samples)),
        "task": {**run["task"], "prompts": prompts},
    }
    return replace(
        whole,
        folders=(*whole.folders, *part.folders),
        run={**run, **joined},
        samples=samples,
        scores={**whole.scores, **part.scores},
        audit=[*whole.audit, *part.audit],
        trees={**whole.trees, **part.trees},
        notes=tuple(notes),
    )
