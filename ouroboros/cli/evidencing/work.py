"""Cases at work, several at once: what is done is passed over, what was stopped is gone on with.

Invariant: one case's failure does not stop another, and nothing that was measured is deleted.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from ouroboros.bench.run.jsonl import pack
from ouroboros.bench.run.provenance import provenance, without_paths
from ouroboros.bench.run.store import RUN, SAMPLES, TREES, ResultsFolder
from ouroboros.cli import place
from ouroboros.cli.evidencing.cases import RUNS, STATE, Case

LOGS = Path("results", "local", "evidence")


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
                        child.send_signal(signal.SIGTERM)

    def one(self, case: Case, threads: str | None) -> None:
        """Do a case unless it is done; say what became of it in one line."""
        name, started = place(case.out), time.monotonic()
        if self.stopping.is_set():
            self.told[name] = "not begun"
            return
        if case.standing() == "done":
            pack_lines(case.out)
            said = self.told[name] = "done"
            said += " before, at these sources"
        elif case.lacking:
            said = self.told[name] = "left out"
            said += f": there is no {case.lacking}"
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
        if not reason:
            pack_lines(case.out)
            for path in case.replaces:
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
        if child.returncode < 0 and self.stopping.is_set():
            return f": {words[0]} was ended as it began; the same command goes on"
        if child.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            return f": {words[0]} ended with {child.returncode}: {(lines or ['nothing said'])[-1]}"
        if document:
            ResultsFolder(out).write_text(document, said.strip().splitlines()[-1] + "\n")
        return ""


def pack_lines(folder: Path) -> None:
    """Pack the samples and trees below a folder: they are kept for as long as its figures."""
    for path in [*folder.rglob(SAMPLES), *folder.rglob(TREES)]:
        pack(path)


def set_aside(path: Path) -> None:
    """Move what lies in a folder to a new one in results/local, and say so: nothing that was
    measured is lost."""
    if path.exists():
        name = str(path).strip("/").replace("/", "-")
        before = LOGS / "before"
        names = (f"{name}-{count}" if count else name for count in itertools.count())
        aside = next(before / one for one in names if not (before / one).exists())
        before.mkdir(parents=True, exist_ok=True)
        shutil.move(path, aside)
        print(f"{place(path)}: what lay there is in {aside}", file=sys.stderr, flush=True)


def finished(words: Sequence[str]) -> bool:
    """Whether a command is a run that lies finished in its folder: it was ended before that could
    be noted."""
    found = [word.partition("=")[2] for word in words if word.startswith("results_dir=")]
    path = Path(found[-1], RUN) if found and words[0] in RUNS else None
    return bool(path and path.exists() and json.loads(path.read_text())["status"] == "finished")
