"""What lies behind the paths that a config names: a path says where to look, not what is found.

Invariant: a hash depends on names, sizes and bytes alone, never on times or on where the files lie,
so that a copy of a model counts as that model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ouroboros.bench.run.pair import place
from ouroboros.bench.tasks.source import BUNDLED

WHOLE_BYTES = 64 << 20
"""A file up to this size is read whole, of a larger one only samples of it."""
SAMPLES, SAMPLE_BYTES = 32, 64 << 10
MODEL_FILES = frozenset(
    (".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py", ".gguf")
)


def contents(config: Mapping) -> dict[str, str]:
    """Return a hash of each file or folder that the config names, by the option that names it.

    Ids of the hub and paths that do not exist are left out.
    """
    return {option: content_hash(path) for option, path in _paths(config) if path.exists()}


def check_places(config: Mapping, recorded: Mapping[str, str]) -> None:
    """Hold the files and folders that a config names against the hashes that a run recorded.

    Raises `ValueError`, asking for the place of each, where some are not there: a run keeps only
    the last part of a path, which may be some other model's id on the hub; and for one of other
    content.
    """
    places = dict(sorted(one for one in _paths(config) if one[0] in recorded))
    if lost := {option: path.name for option, path in places.items() if not path.exists()}:
        what = ", ".join(f"{option} from {name}" for option, name in lost.items())
        given = " ".join(f"{option}=<path>" for option in lost)
        raise ValueError(
            f"the run read {what}, of which it keeps the name only: give the place, as {given}"
        )
    for option, path in places.items():
        if content_hash(path) != recorded[option]:
            raise ValueError(f"{option}={path} is not what the run read: give the place of that")


def content_hash(path: Path) -> str:
    """Return a short hash of a file, or of a model's folder (without its subfolders)."""
    files = [path] if path.is_file() else sorted(_model_files(path))
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name if path.is_dir() else ''}\0{file.stat().st_size}\0".encode())
        for part in _parts(file):
            digest.update(part)
    return digest.hexdigest()[:16]


def _paths(config: Mapping) -> Iterator[tuple[str, Path]]:
    for role in ("target", "draft"):
        if config["model"].get(role):
            yield f"model.{role}", Path(place(str(config["model"][role])))
    if config.get("task", {}).get("path") not in (None, "", BUNDLED):
        yield "task.path", Path(str(config["task"]["path"]))
    if config.get("costs"):
        yield "costs", Path(str(config["costs"]))
    for name, own in config["decoder"].items():
        for option in ("pool", "costs", "weights"):
            if own.get(option):
                yield f"decoder.{name}.{option}", Path(str(own[option]))


def _model_files(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if file.suffix in MODEL_FILES and file.is_file()]


def _parts(file: Path) -> Iterator[bytes]:
    """Yield a file's bytes, or those of samples of it, evenly spread, both ends among them.

    The first one holds a safetensors file's header.
    """
    size = file.stat().st_size
    with open(file, "rb") as opened:
        if size <= WHOLE_BYTES:
            yield opened.read()
            return
        for number in range(SAMPLES):
            opened.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            yield opened.read(SAMPLE_BYTES)
