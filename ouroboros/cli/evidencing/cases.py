"""The stages of conf/evidence.yaml as cases: each a results folder and the commands that make it.

Invariant: a folder whose evidence.json says "done" holds what these very commands give at the
sources that it names.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from ouroboros.bench.run.provenance import identity, sources_hash, without_paths
from ouroboros.cli import CONF

STATE = "evidence.json"
RUNS = ("bench", "profile")
"""Commands that go on with a run that was stopped, and refuse one that is finished."""
ELSEWHERE = ("campaign.yaml", "evidence.yaml", "experiment", "hydra", "rehearsal", "shapes", "tune")
"""Of conf: what no command of a stage reads, but for the experiments that it names."""


@dataclass(frozen=True)
class Case:
    """One results folder: the commands that make it, each as its words."""

    stage: str
    out: Path
    commands: Sequence[Sequence[str]]
    minutes: float
    timed: bool = False
    lacking: str | None = None
    replaces: Sequence[Path] = ()

    @property
    def key(self) -> str:
        """A hash of what its figures depend on: commands, their settings, sources."""
        words = [word for command in self.commands for word in command]
        return identity(without_paths(words), settings(*words), sources_hash())

    def state(self) -> dict:
        """Return evidence.json; {} where there is none."""
        path = self.out / STATE
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    def standing(self) -> str:
        """Return in a word what lies in the folder."""
        old = self.state()
        if not old:
            return "other" if self.out.exists() else "missing"
        return old["status"] if old["key"] == self.key else "stale"


def settings(*words: str) -> dict[str, object]:
    """Return the configs that commands may read, comments left out, by their paths."""
    named = {word.partition("=")[2] for word in words if word.startswith("experiment=")}
    return {
        str(path): content
        for path, content in _configs().items()
        if path.parts[0] not in ELSEWHERE
        or (path.parts[0] == "experiment" and (path.stem in named or path.stem[0] == "_"))
    }


@cache
def _configs() -> dict[Path, object]:
    files = sorted(Path(CONF).rglob("*.yaml"))
    return {path.relative_to(CONF): yaml.safe_load(path.read_text("utf-8")) for path in files}


def cases(config: Mapping) -> Iterator[Case]:
    """Yield every case of the stages asked for, in the order of the table."""
    root, table = Path(config["results_dir"]), config["table"]
    for name in config["stages"] or table:
        stage = table[name]
        for chosen in itertools.product(*(own.items() for own in stage.get("cases", ()))):
            values = {key: value for _, own in chosen for key, value in own.items()}
            inner = "_".join(case for case, _ in chosen)
            yield case_of(name, root / name / inner, {**stage, **values}, config)


def case_of(name: str, out: Path, values: Mapping, config: Mapping) -> Case:
    """Return the case of a stage in the folder `out`; `values` are the stage's and the case's."""
    needs, data, root = values.get("needs"), config["data"], Path(config["results_dir"])
    known = {"out": out, "data": data or "/data", **values}
    known |= {key: str(value).format(**known) for key, value in values.items() if key == "task"}
    commands = [shlex.split(line.format(**known)) for line in values["run"]]
    absent = needs and (data is None or not Path(data, needs).exists())
    file = f"{needs}: data=FOLDER says where" if data is None else f"{data}/{needs}"
    return Case(
        name,
        out,
        [completed(words, out, config["extra"]) for words in commands],
        values["minutes"],
        values.get("timed", False),
        file if absent else None,
        [root / old for old in values.get("replaces", ())],
    )


def completed(words: list[str], out: Path, extra: Sequence[str]) -> list[str]:
    """Return a command with the folder that it writes to and the options added to runs."""
    if words[0] not in RUNS:
        return words
    told = any(word.startswith("results_dir=") for word in words)
    return [*words, *([] if told else [f"results_dir={out}"]), *extra]
