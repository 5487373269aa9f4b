"""Everything that README and docs quote, measured on one commit, in stages: `ouroboros evidence`.

What can be typed stands in `ouroboros.commands.arguments`, the stages in conf/evidence.yaml: each
is a list of the other commands with a results folder. Invariant: a folder whose evidence.json says
"done" holds what these very commands give at the sources that it names; any other is gone on with
where sources and commands are the same, and made anew where they are not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from tabulate import tabulate

from ouroboros.bench.run.options import check_whole
from ouroboros.bench.run.provenance import (
    identity,
    provenance,
    sources_hash,
    without_paths,
)
from ouroboros.bench.run.store import RUN, ResultsFolder
from ouroboros.commands import CONF, place

STATE = "evidence.json"
LOGS = Path("results", "local", "evidence")
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


@cache
def settings(*words: str) -> dict[str, object]:
    """Return the configs that commands may read, comments left out, by their paths."""
    named = {word.partition("=")[2] for word in words if word.startswith("experiment=")}
    found = {}
    for path in sorted(Path(CONF).rglob("*.yaml")):
        inner = path.relative_to(CONF)
        own = inner.parts[0] == "experiment" and (path.stem in named or path.stem[0] == "_")
        if own or inner.parts[0] not in ELSEWHERE:
            found[str(inner)] = yaml.safe_load(path.read_text("utf-8"))
    return found


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
    known = {"out": out, "data": data, **values}
    known |= {key: str(value).format(**known) for key, value in values.items() if key == "task"}
    commands = [shlex.split(line.format(**known)) for line in values["run"]]
    absent = needs and (data is None or not Path(data, needs).exists())
    return Case(
        name,
        out,
        [completed(words, out, config["extra"]) for words in commands],
        values["minutes"],
        values.get("timed", False),
        needs if absent else None,
        [root / old for old in values.get("replaces", ())],
    )


def completed(words: list[str], out: Path, extra: Sequence[str]) -> list[str]:
    """Return a command with the folder that it writes to and the options added to runs."""
    if words[0] not in RUNS:
        return words
    told = any(word.startswith("results_dir=") for word in words)
    return [*words, *([] if told else [f"results_dir={out}"]), *extra]


def evidence(args: argparse.Namespace) -> int:
    """Do the cases that are not done, a line for each; return 0 where none failed."""
    table = yaml.safe_load(Path(CONF, "evidence.yaml").read_text("utf-8"))
    config = checked(args.overrides, table)
    found = list(cases(config))
    if args.list:
        print(listed(found))
        return 0
    work = Work()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counts = [case for case in found if not case.timed]
    work.all(counts, config["jobs"], threads="1")
    work.all([case for case in found if case.timed], 1)
    print(json.dumps({"results": place(Path(config["results_dir"])), "cases": work.told}))
    return 130 if work.stopping.is_set() else int("failed" in work.told.values())


def checked(overrides: Sequence[str], table: Mapping) -> dict:
    """Return the config with what was typed. Raises `ValueError`, in one line, for what cannot
    be."""
    found = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)))
    typed = cast(dict[str, Any], found)
    unknown = [key for key in typed if key not in table or key in ("table", "tasks", "heats")]
    if unknown:
        raise ValueError(
            f"there is no option {unknown[0]}; those there: results_dir, stages, data, jobs, extra"
        )
    config = {**table, **typed}
    check_whole("jobs", config["jobs"])
    wrong = [name for name in config["stages"] or () if name not in config["table"]]
    if wrong:
        known = ", ".join(config["table"])
        raise ValueError(f"stages=[{','.join(map(str, wrong))}]: choose from {known}")
    return config


def listed(found: Sequence[Case]) -> str:
    """Return a table of the cases."""
    rows = [
        {
            "folder": place(case.out),
            "what lies there": f"lacks {case.lacking}" if case.lacking else case.standing(),
            "minutes": case.minutes,
            "machine": "alone" if case.timed else "shared",
            "command": shlex.join(["ouroboros", *case.commands[-1]])[:100],
        }
        for case in found
    ]
    total = sum(c.minutes for c in found if not c.lacking and c.standing() != "done")
    return f"{tabulate(rows, headers='keys')}\n\nabout {total:g} minutes left, one after the other"


@dataclass
class Work:
    """Cases at work: what became of each, and the processes that run now."""

    told: dict[str, str] = field(default_factory=dict)
    running: set[subprocess.Popen] = field(default_factory=set)
    stopping: threading.Event = field(default_factory=threading.Event)

    def all(self, found: Sequence[Case], jobs: int, threads: str | None = None) -> None:
        """Do the cases, `jobs` at once. Ctrl-C asks the commands at work to finish their sample,
        a second one ends them; none is begun after it."""
        with ThreadPoolExecutor(jobs) as pool:
            left = {pool.submit(self.one, case, threads) for case in found}
            while left:
                try:
                    left = wait(left, timeout=0.5).not_done
                except KeyboardInterrupt:
                    self.stopping.set()
                    for child in list(self.running):
                        child.send_signal(signal.SIGINT)

    def one(self, case: Case, threads: str | None) -> None:
        """Do a case unless it is done; say what became of it in one line."""
        name, started = place(case.out), time.monotonic()
        if self.stopping.is_set():
            self.told[name] = "not begun"
            return
        if case.lacking:
            said = self.told[name] = "left out"
            said += f": there is no {case.lacking} (data=FOLDER says where)"
        elif case.standing() == "done":
            said = self.told[name] = "done"
            said += " before, at these sources"
        else:
            self.told[name], reason = self.do(case, threads)
            said = self.told[name] + reason + f" ({(time.monotonic() - started) / 60:.1f} minutes)"
        print(f"{name}: {said}", file=sys.stderr, flush=True)

    def do(self, case: Case, threads: str | None) -> tuple[str, str]:
        """Run a case's commands from where it was stopped; return its status and why."""
        folder, old = ResultsFolder(case.out), case.state()
        if old.get("key") != case.key:
            set_aside(case.out)
            old = {}
        case.out.mkdir(parents=True, exist_ok=True)
        facts = {
            "commands": [" ".join(["ouroboros", *without_paths(w)]) for w in case.commands],
            "key": case.key,
            "provenance": provenance(),
            "done": old.get("done", 0),
        }
        status, reason = "done", ""
        for words in case.commands[facts["done"] :]:
            folder.write_json(STATE, {**facts, "status": "unfinished"})
            reason = "" if finished(words) else self.command(words, case.out, threads)
            if reason:
                status = "stopped" if self.stopping.is_set() else "failed"
                break
            facts["done"] += 1
        folder.write_json(STATE, {**facts, "status": "unfinished" if reason else "done"})
        for path in () if reason else case.replaces:
            set_aside(path)
        return status, reason

    def command(self, words: Sequence[str], out: Path, threads: str | None) -> str:
        """Run one command; return "" or why it failed. What it says goes to a log."""
        words, document = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
        log = LOGS / f"{re.sub(r'[^A-Za-z0-9.]+', '-', str(out))}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | ({"OMP_NUM_THREADS": threads} if threads else {})
        with log.open("w") as file:
            child = subprocess.Popen(
                [sys.executable, "-m", "ouroboros", *words],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches it through `all` alone
            )
            self.running.add(child)
            said, _ = child.communicate()
            self.running.discard(child)
        if child.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            return f": {words[0]} ended with {child.returncode}: {(lines or ['nothing said'])[-1]}"
        if document:
            ResultsFolder(out).write_text(document, said.strip().splitlines()[-1] + "\n")
        return ""


def set_aside(path: Path) -> None:
    """Move what lies in a folder to results/local, where the last such thing gives way to it: what
    was measured is not lost before it is measured anew."""
    if path.exists():
        aside = LOGS / "before" / str(path).strip("/").replace("/", "-")
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, aside)


def finished(words: Sequence[str]) -> bool:
    """Whether a command is a run that lies finished in its folder: it was ended before that could
    be noted."""
    found = [word.partition("=")[2] for word in words if word.startswith("results_dir=")]
    path = Path(found[-1], RUN) if found and words[0] in RUNS else None
    return bool(path and path.exists() and json.loads(path.read_text())["status"] == "finished")
