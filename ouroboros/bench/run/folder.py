"""A results folder: the files of one run. A killed run loses only the samples being decoded.

    run.json        the resolved config, versions, machine, and whether the run is finished
    samples.jsonl   one line per (prompt, decoder, repeat), flushed when its sequence ends
    prompts.jsonl   the prompts that a chat template rendered, if any
    failures.jsonl  the traceback of each failed sample, if any failed
    scores.jsonl    one line per scored sample
    audit.jsonl     one line per prompt and repeat: the verdict on each completion
    predictions.jsonl   the target's prediction at every node, if the run records them for replays
    trees.jsonl     the draft trees of decoders that estimate node probabilities
    costs.json      the call costs measured with the run, or given to it, if any
    tokenizer.json.gz   the target's tokenizer, for a report, if the target is a folder
    pool-*.json     the phrase pools that decoders carry from prompt to prompt
    audit.md        the verdicts as text
    summary.json, summary.md, speedup.svg, calls.svg    made by the report from the files above

Invariants: .jsonl files only grow, and each line is flushed to disk. An incomplete last line is
never read, and is dropped before the next append. Of two samples with the same key the later one
counts. One process writes at a time and holds the lock (`locked`). Finished .jsonl files may be
compressed (.jsonl.xz): these can be read but not appended to.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.identity import changes
from ouroboros.bench.run.tree_recorder import PrefixKey, ProposedTree
from ouroboros.core.tree import TokenTree
from ouroboros.costs import NAMES, Costs

RUN, SAMPLES, SCORES, AUDIT = "run.json", "samples.jsonl", "scores.jsonl", "audit.jsonl"
PREDICTIONS, TREES, COSTS = "predictions.jsonl", "trees.jsonl", "costs.json"
PROMPTS = "prompts.jsonl"
FAILURES, TOKENIZER = "failures.jsonl", "tokenizer.json.gz"
MADE = (
    *(RUN, SCORES, AUDIT, PREDICTIONS, TREES, COSTS, PROMPTS, FAILURES, TOKENIZER),
    *("audit.md", "summary.json", "summary.md", "speedup.svg", "calls.svg", "pool-*.json*"),
)
"""Files that overwriting a run removes (samples.jsonl, which has the lock, is emptied)."""
SampleKey = tuple[str, str, int]
MOST_TREE_BYTES = 32 << 20
"""Size limit of trees.jsonl; further trees are not written."""
REMEDY = "use another results_dir, or overwrite=true"


class Finished(ValueError):
    """The run is already finished."""


class ResultsFolder:
    """The files of one run in `path`. With `overwrite`, an old run's files are not read, and are
    removed when the run starts."""

    def __init__(self, path: Path | str, *, overwrite: bool = False) -> None:
        self.path, self.overwrite = Path(path), overwrite

    @contextlib.contextmanager
    def locked(self, name: str = SAMPLES) -> Iterator[None]:
        """Lock the folder against other processes (`ValueError` if one has the lock). If the
        folder is created for this and stays empty, remove it again."""
        new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        path = stored(self.path / name)
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(f"{self.path}: another run is writing here") from error
            try:
                yield
            finally:
                if new and list(self.path.iterdir()) == [path] and not path.stat().st_size:
                    path.unlink()
                    os.removedirs(self.path)

    def run_to_resume(self, facts: Mapping) -> dict | None:
        """Return the run.json to resume by a run with the run.json `facts`; None for a new run.

        Raises `ValueError` if the folder has a different run or files without a run.json, and
        `Finished` if its run is finished and none of its samples failed.
        """
        if self.overwrite:
            return None
        if not (self.path / RUN).exists():
            for path in (self.path / name for name in (SAMPLES, SCORES, COSTS)):
                if path.exists() and path.stat().st_size:
                    raise ValueError(f"{self.path} has {path.name}, but no {RUN}: {REMEDY}")
            return None
        old = self.load_run()
        if what := changes(old, facts):
            raise ValueError(
                f"{self.path} holds a run with other settings, code or environment ({what}): "
                f"resume it as it was, {REMEDY}"
            )
        if old.get("status") == "finished" and not any(s.error for s in self.load_samples()):
            audit = "'ouroboros audit' repeats its audit and summary"
            raise Finished(f"{self.path} holds this run, already finished: {REMEDY}; {audit}")
        return old

    def open_run(self, facts: dict) -> dict:
        """Start the run or resume the one in this folder; return its run.json. Errors are those
        of `run_to_resume`."""
        old = self.run_to_resume(facts)
        if self.overwrite:
            (self.path / SAMPLES).write_bytes(b"")
        # The audit covers old samples only.
        for name in MADE if self.overwrite else (AUDIT, "audit.md"):
            for path in self.path.glob(name):
                path.unlink()
        return self.save_run(old or facts, status="running")

    def save_run(self, facts: dict, *, status: str) -> dict:
        """Write and return run.json with a status ("running", "interrupted" or "finished")."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_json(RUN, facts := {**facts, "status": status})
        return facts

    def load_run(self) -> dict:
        """Return the content of run.json. Raises `ValueError` if it is missing or damaged."""
        path = self.path / RUN
        if not path.exists():
            raise ValueError(f"{self.path} is not a results folder: it has no {RUN}")
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): use another results_dir") from error

    def engines(self) -> dict[str, str]:
        """Return each model's engine by role, such as {"target": "fused"}, if this folder's run
        is on a CPU, where engines are chosen by timing: a resumed run must reuse them."""
        resumed = not self.overwrite and (self.path / RUN).exists()
        model = self.load_run().get("model", {}) if resumed else {}
        if model.get("device") != "cpu":
            return {}
        return {role: made["engine"] for role, made in model.get("engines", {}).items()}

    def pool_path(self, decoder: str) -> Path:
        """Return the file of a decoder's phrase pool."""
        return self.path / f"pool-{decoder}.json"

    def write_tokenizer(self, tokenizer) -> None:
        """Write tokenizer.json.gz, if the tokenizer is a fast one."""
        if backend := getattr(tokenizer, "backend_tokenizer", None):
            packed = gzip.compress(backend.to_str().encode(), mtime=0)
            (self.path / TOKENIZER).write_bytes(packed)

    def load_tokenizer(self) -> PreTrainedTokenizerFast | None:
        """Return the tokenizer that the run wrote; None if it wrote none."""
        if not (path := self.path / TOKENIZER).exists():
            return None
        made = Tokenizer.from_buffer(gzip.decompress(path.read_bytes()))
        return PreTrainedTokenizerFast(tokenizer_object=made)

    def write_json(self, name: str, data: dict) -> None:
        """Write a JSON file atomically."""
        self.write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        part = self.path / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self.path / name)

    def append(self, name: str, row: Mapping[str, object], key: SampleKey | None = None) -> None:
        """Append a line to a .jsonl file and flush it to disk. The line gets the sample's `key`,
        if given. Raises `ValueError` if the file is compressed."""
        path, line = self.path / name, {"key": key, **row} if key else row
        if (packed := stored(path)) != path:
            raise ValueError(f"{packed} is compressed: unpack it with xz -d to resume")
        with open(path, "a+b") as file:
            if size := file.tell():
                file.seek(size - 1)
                if file.read() != b"\n":
                    file.truncate(path.read_bytes().rfind(b"\n") + 1)
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def add_predictions(self, key: SampleKey, predictions: Mapping[PrefixKey, int]) -> None:
        """Append a sample's predictions (see `Recorder.predictions`)."""
        self.append(PREDICTIONS, {"predictions": [(*k, t) for k, t in predictions.items()]}, key)

    def add_trees(self, key: SampleKey, steps: Sequence[ProposedTree]) -> None:
        """Append a sample's trees; write nothing if the file has reached its size limit."""
        path, rows = self.path / TREES, []
        if path.exists() and path.stat().st_size >= MOST_TREE_BYTES:
            return
        names = list(dict.fromkeys(name for step in steps for name in step.tree.source))
        for tree, accepted, then in steps:
            row = {"tokens": tree.tokens, "parents": tree.parents, "path": accepted, "then": then}
            row["probability"] = [round(float(share), 4) for share in tree.probability]
            row |= {"source": list(map(names.index, tree.source)), "probe": sorted(tree.probe)}
            rows.append({name: value for name, value in row.items() if value not in ((), [])})
        self.append(TREES, {"sources": names, "steps": rows}, key)

    def load_samples(self) -> list[Sample]:
        """Return all samples in the order of measurement; of one measured twice only the later."""
        samples: dict[SampleKey, Sample] = {}
        for sample in read_lines(self.path / SAMPLES, Sample.from_dict):
            samples.pop(sample.key, None)
            samples[sample.key] = sample
        return list(samples.values())

    def load_prompts(self) -> dict[str, str]:
        """Return the saved prompts, the `texts` of a `PromptBuilder`."""
        return dict(read_lines(self.path / PROMPTS, lambda row: (row["messages"], row["prompt"])))

    def load_scores(self) -> dict[SampleKey, dict[str, float]]:
        """Return the saved scores: {sample key: {name of score: value}}."""
        names = itemgetter("example", "decoder", "repeat")
        return dict(read_lines(self.path / SCORES, lambda row: (names(row), row["scores"])))

    def load_predictions(self) -> dict[SampleKey, dict[PrefixKey, int]]:
        """Return the saved predictions: {sample key: {prefix key: token}}."""

        def parse(row: dict) -> tuple:
            rows = row["predictions"]
            return tuple(row["key"]), {(along, tuple(off)): token for along, off, token in rows}

        return dict(read_lines(self.path / PREDICTIONS, parse))

    def load_trees(self) -> dict[SampleKey, list[ProposedTree]]:
        """Return the saved trees: {sample key: [one per step]}."""

        def step(one: dict, names: Sequence[str]) -> ProposedTree:
            nodes = tuple(one["tokens"]), tuple(one["parents"]), frozenset(one.get("probe", ()))
            sources = tuple(names[index] for index in one.get("source", ()))
            tree = TokenTree(*nodes, sources, probability=tuple(one.get("probability", ())))
            return ProposedTree(tree, tuple(one["path"]), one["then"])

        def parse(row: dict) -> tuple:
            return tuple(row["key"]), [step(one, row["sources"]) for one in row["steps"]]

        return dict(read_lines(self.path / TREES, parse))

    def load_costs(self) -> Costs | None:
        """Return the run's costs, or None. Raises `ValueError` for a damaged file."""
        path = self.path / COSTS
        return Costs.load(path) if path.exists() else None


def load_costs(source: str | Path | Mapping | None) -> Costs | None:
    """Load call costs from a name, file or mapping, as `Costs.load`, or as the medians of a timed
    results folder; None if `source` is None.

    Costs of a file or folder without a name get its name, as `about["name"]`.
    """
    if source is None or isinstance(source, Mapping):
        return None if source is None else Costs.load(source)
    if source in NAMES or not isinstance(source, str | Path) or not Path(source).is_dir():
        costs, path = Costs.load(source), Path(source)
        name = f"{path.resolve().parent.name}/{path.name}" if path.name == COSTS else path.stem
        return replace(costs, about={"name": name, **costs.about})
    folder = ResultsFolder(source)
    if not folder.load_run().get("timing", True):
        raise ValueError(f"{source} was run with timing=false: give a folder that was timed")
    costs = Costs.of_samples([sample for sample in folder.load_samples() if not sample.error])
    return replace(costs, about={"name": Path(source).name})


def read_lines(path: Path, parse: Callable[[dict], Any] = dict) -> Iterator[Any]:
    """Yield `parse(object)` for each complete line of a .jsonl file, which may be compressed;
    nothing if it is missing. Raises `ValueError` with the line number for a damaged line."""
    if not (path := stored(path)).exists():
        return
    try:
        read = path.read_bytes()
        text = (lzma.decompress(read) if path.suffix == ".xz" else read).decode(errors="replace")
    except lzma.LZMAError as error:
        raise ValueError(f"{path} is damaged: copy it again") from error
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            yield parse(json.loads(line))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: damaged") from error


def stored(path: Path) -> Path:
    """Return the path of a .jsonl file, or of its compressed version if that exists."""
    packed = path.with_name(f"{path.name}.xz")
    return packed if packed.exists() and not path.exists() else path
