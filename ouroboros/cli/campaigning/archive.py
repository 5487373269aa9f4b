"""What is taken away from the machine: an archive of each stage as it ends, and what was compiled.

Invariant: archives are replaced whole, and those of all stages together keep to what a lent machine
gives back: 8 files, of 16 MiB each, 64 MiB together.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

STAGE_BYTES, COMPILED_BYTES = 6 << 20, 15 << 20
COMPILED = "compiled"
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def keep_compiled(folder: Path) -> None:
    """Let this process' children keep what they compile in a folder, unless a place is set."""
    for variable, name in CACHES.items():
        os.environ.setdefault(variable, str((folder / name).absolute()))


def archive(root: Path, stage: str, out: Path) -> list[str]:
    """Write a stage's folder, and what was compiled so far, into `out`; return the names of files
    that were too large to come along."""
    left = pack(root, (root / stage, root / "campaign.json"), out / f"{stage}.tar.gz", STAGE_BYTES)
    pack(root, (root / COMPILED,), out / f"{COMPILED}.tar.gz", COMPILED_BYTES)
    return left


def pack(root: Path, parts: Iterable[Path], out: Path, limit: int) -> list[str]:
    """Write files below `root` into one archive of `limit` bytes at most, the largest ones left
    out; return the names of those."""
    found = [f for part in parts for f in ([part] if part.is_file() else part.rglob("*"))]
    files = sorted((f for f in found if f.is_file()), key=lambda f: (-f.stat().st_size, str(f)))
    if not files:
        return []
    out.parent.mkdir(parents=True, exist_ok=True)
    draft, left = out.with_suffix(".part"), 0
    while True:
        with tarfile.open(draft, "w:gz") as tar:
            for file in files[left:]:
                tar.add(file, arcname=Path(root.name, file.relative_to(root)))
        if draft.stat().st_size <= limit:
            break
        left += 1 + left // 2
    draft.replace(out)
    return [str(file.relative_to(root)) for file in files[:left]]
