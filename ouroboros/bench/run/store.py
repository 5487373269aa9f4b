"""A results folder: what a run writes as it goes, so that a kill costs one sample at most.

    run.json        resolved config, versions, machine, and whether the run has finished
    samples.jsonl   one line per (prompt, decoder, repeat), on disk before the next one starts
    failures.jsonl  the traceback of each failed sample, if there is one
    scores.jsonl    one line per scored sample
    audit.jsonl     one line per prompt and repeat: each completion's verdict
    predictions.jsonl   if asked for: what the target predicted at every node, for replays
    trees.jsonl     the trees that were proposed, of decoders that say how sure they are
    costs.json      if known: what calls cost, as it was measured or as decoders went by it
    pool-*.json     the phrase pools that decoders carry from prompt to prompt
    audit.md        the verdicts as text
    summary.json, summary.md, speedup.png, calls.png: made from run, samples, scores and audit, at
                    any time, by the report

Invariant: lines are only ever appended; of two samples with one key the later one counts. When a
folder may be gone on with is said by `ouroboros.bench.run.resume`. Samples and trees that are kept
may be packed, as .jsonl.gz.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.trees import ProposedTree
from ouroboros.bench.run.jsonl import JsonLines, locked, named_errors, read_lines
from ouroboros.bench.run.recorder import PrefixKey, listed, row_tree, tree_row, unlisted
from ouroboros.bench.run.resume import RunIdentity, check_same
from ouroboros.costs.surface import Costs

RUN, SAMPLES, SCORES, AUDIT = "run.json", "samples.jsonl", "scores.jsonl", "audit.jsonl"
PREDICTIONS, TREES, COSTS = "predictions.jsonl", "trees.jsonl", "costs.json"
FAILURES = "failures.jsonl"
MADE = (
    *(RUN, SAMPLES, SCORES, AUDIT, PREDICTIONS, TREES, COSTS, FAILURES),
    *("audit.md", "summary.json", "summary.md", "speedup.png", "calls.png"),
)
SampleKey = tuple[str, str, int]
MOST_TREE_BYTES = 32 << 20
"""Of trees.jsonl: once it is as large, no more is written."""


class ResultsFolder:
    """The files of one run in `path`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def check_open(self, claim: RunIdentity) -> dict | None:
        """Return the run.json that is to be gone on with, or None; changes nothing.

        Raises `ValueError` as `RunIdentity.check`.
        """
        old = None if claim.overwrite else self._old_run()
        if old is not None:
            failed = claim.retry_failed and any(sample.error for sample in self.load_samples())
            claim.check(old, self.path, failed=failed)
        return old

    def open_run(self, facts: dict, claim: RunIdentity) -> dict:
        """Begin a run, or take up the one that lies here; return its run.json.

        Raises as `check_open`, where another process is writing here, and where task, models or
        length are not those of the run's `facts`. To overwrite is to remove the files of the run
        before.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / SAMPLES) as samples:
            old = self.check_open(claim)
            if old is not None:
                check_same(old, facts, self.path)
                return self.save_run({**old, "resumed": old["resumed"] + 1}, status="running")
            if claim.overwrite:
                samples.truncate(0)  # it stays, since its lock is held by the file, not the name
                self._remove_pools()
                for name in set(MADE) - {SAMPLES}:
                    (self.path / name).unlink(missing_ok=True)
            own = {"identity": claim.identity, "environment": dict(claim.environment)}
            return self.save_run({**own, **facts, "resumed": 0}, status="running")

    def drop_pools(self) -> None:
        """Remove the phrase pools, unless a sample failed: its retry goes on from them."""
        if not any(sample.error for sample in self.load_samples()):
            self._remove_pools()

    def _remove_pools(self) -> None:
        for path in self.path.glob("pool-*.json*"):
            path.unlink()

    def save_run(self, facts: dict, *, status: str) -> dict:
        """Write run.json with a status ("running", "interrupted" or "finished"); return it."""
        facts = {**facts, "status": status}
        self.write_json(RUN, facts)
        return facts

    def load_run(self) -> dict:
        """Return run.json, classes by their present names. Raises `ValueError` where there is
        none."""
        facts = self._old_run()
        if facts is None:
            raise ValueError(f"{self.path} is not a results folder: it has no {RUN}")
        return renamed(facts)

    def save_costs(self, costs: Costs) -> None:
        """Write costs.json."""
        self.write_json(COSTS, asdict(costs))

    def write_json(self, name: str, data: dict) -> None:
        """Write a whole JSON file, or nothing at all."""
        self.write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a whole text file, or nothing at all."""
        part = self.path / f"{name}.part"
        with named_errors(self.path / name):
            part.write_text(text, encoding="utf-8")
            part.replace(self.path / name)

    def load_samples(self) -> list[Sample]:
        """Return the samples on disk, the newest of each key, without a torn last line.

        They come in the order in which they were measured, a retried one in its new place.
        """
        samples: dict[SampleKey, Sample] = {}
        for number, line in read_lines(self.path / SAMPLES):
            try:
                sample = Sample.from_dict(line)
            except (KeyError, TypeError) as error:
                raise ValueError(f"{self.path / SAMPLES}, line {number}: not a sample") from error
            samples.pop(sample.key, None)
            samples[sample.key] = sample
        return list(samples.values())

    def load_scores(self) -> dict[SampleKey, dict[str, float]]:
        """Return the scores on disk by sample key."""
        rows = [line for _, line in read_lines(self.path / SCORES)]
        return {(r["example"], r["decoder"], r["repeat"]): r["scores"] for r in rows}

    def add_failure(self, key: SampleKey, traceback: str) -> None:
        """Append why a sample failed, before its own line."""
        with self.appending(FAILURES) as lines:
            lines.append({"key": list(key), "traceback": traceback})

    def add_predictions(self, key: SampleKey, predictions: Mapping[PrefixKey, int]) -> None:
        """Append a sample's predictions, before its own line."""
        with self.appending(PREDICTIONS) as lines:
            lines.append({"key": list(key), "predictions": listed(predictions)})

    def load_predictions(self) -> dict[SampleKey, dict[PrefixKey, int]]:
        """Return the predictions on disk by sample key."""
        rows = [line for _, line in read_lines(self.path / PREDICTIONS)]
        return {tuple(row["key"]): unlisted(row["predictions"]) for row in rows}

    def add_trees(self, key: SampleKey, trees: Sequence[ProposedTree]) -> None:
        """Append a sample's trees, before its own line, unless the file is full."""
        with self.appending(TREES) as lines:
            if (self.path / TREES).stat().st_size < MOST_TREE_BYTES:
                names: list[str] = []
                rows = [tree_row(tree, names) for tree in trees]
                lines.append({"key": list(key), "sources": names, "steps": rows})

    def load_trees(self) -> dict[SampleKey, list[ProposedTree]]:
        """Return the trees on disk by sample key, one for each step; the newest of each key."""
        return {
            tuple(line["key"]): [row_tree(row, line["sources"]) for row in line["steps"]]
            for _, line in read_lines(self.path / TREES)
        }

    def drop_if_empty(self, name: str) -> None:
        """Remove a file in which nothing was written."""
        if not (self.path / name).stat().st_size:
            (self.path / name).unlink()

    @contextlib.contextmanager
    def appending(self, name: str) -> Iterator[JsonLines]:
        """Open a .jsonl file to append to, its torn last line dropped, for this process alone."""
        with locked(self.path / name) as file:
            yield JsonLines(file, self.path / name)

    def _old_run(self) -> dict | None:
        path = self.path / RUN
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: use another results_dir") from error


def renamed(recorded):
    """Return JSON values in which each `_target_` is the class's present name: until 0.1 the
    baselines were a package of their own.

    >>> renamed({"greedy": {"_target_": "baselines.Greedy"}})
    {'greedy': {'_target_': 'ouroboros.baselines.Greedy'}}
    """
    if isinstance(recorded, list):
        return [renamed(value) for value in recorded]
    if not isinstance(recorded, dict):
        return recorded
    new = {name: renamed(value) for name, value in recorded.items()}
    if str(new.get("_target_", "")).startswith("baselines."):
        new["_target_"] = f"ouroboros.{new['_target_']}"
    return new
