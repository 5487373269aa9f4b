"""Collect what the GPU scripts need and a GPU machine without a network lacks, as wheels.

    python scripts/gpu/wheels.py build/wheels
    pip install --no-index --no-deps build/wheels/*.whl       there

The wheels are for Python 3.12 on Linux x86-64, in the versions installed here, less what such a
machine has. A wheel of more than 10 MiB (llvmlite, for numba) is cut into parts below OUT/parts,
since repository and wheels together must stay below 64 MiB in one transfer: bring one part a call,
then `cat parts/NAME.* > NAME`. Prints each size, and the sum of wheels and repository.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT, EXTRA = "ouroboros-decoding", "bench"
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
PART_BYTES = 10 << 20
MOST_BYTES = 64 << 20  # of wheels and repository together, as a machine takes them
THERE = frozenset(
    (
        *("torch", "transformers", "triton", "accelerate", "tokenizers", "safetensors", "numpy"),
        *("pandas", "matplotlib", "scipy", "jinja2", "markupsafe", "psutil", "nvidia-ml-py"),
        *("hypothesis", "tqdm", "pyyaml", "packaging", "click"),
    )
)
"""What the machine has, and with it all that these need."""
LEFT = frozenset(("datasets", "lxml"))
"""Not carried: the GPU scripts read no hub; without lxml (too large) the task wmt16 is left out."""


def wheels(out: Path) -> None:
    """Collect them; print each with its size, then the total."""
    out.mkdir(parents=True, exist_ok=True)
    for name in carried():
        collect(name, version(name), out)
    for wheel in out.glob("*.whl"):
        if wheel.stat().st_size > PART_BYTES:
            (out / "parts").mkdir(exist_ok=True)
            content = wheel.read_bytes()
            for at in range(0, len(content), PART_BYTES):
                part = out / "parts" / f"{wheel.name}.{at // PART_BYTES:02d}"
                part.write_bytes(content[at : at + PART_BYTES])
            wheel.unlink()
    sizes = {path.name: path.stat().st_size for path in sorted(out.glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 2**20:8.2f} MiB  {name}")
    tree = tracked_bytes(Path.cwd())
    total = sum(sizes.values()) + tree
    print(f"{total / 2**20:8.2f} MiB  with the repository's {tree / 2**20:.2f}")
    if total > MOST_BYTES:
        raise ValueError(f"that is more than {MOST_BYTES >> 20} MiB: leave files out")


def carried(needs: Callable[[str], Iterable[str] | None] = requires) -> list[str]:
    """Return the distributions that are carried: all that the extra needs, and what that needs in
    turn, less what is there and what is left. Raises `PackageNotFoundError` for one that is not
    installed here."""
    found: set[str] = set()
    waiting = [(PROJECT, EXTRA)]
    while waiting:
        name, extra = waiting.pop()
        for line in needs(name) or ():
            one = Requirement(line)
            own = canonicalize_name(one.name)
            wanted = one.marker is None or one.marker.evaluate({"extra": extra})
            if wanted and own not in found | THERE | LEFT | {PROJECT}:
                found.add(own)
                waiting.append((own, ""))
    return sorted(found)


def collect(name: str, wanted: str, out: Path) -> None:
    """Put a distribution's wheel for the target into `out`: the index's, else one built from source
    that any Python takes. Raises `ValueError` where there is neither."""
    if list(out.rglob(f"{re.sub(r'[-.]+', '_', name)}-{wanted}-*.whl*")):
        return
    place = ("--python-version", PYTHON, *(f"--platform={one}" for one in PLATFORMS))
    exact = ("--quiet", "--no-deps", f"{name}=={wanted}")
    there = pip("download", "--only-binary=:all:", *place, "--dest", str(out), *exact)
    if not there.returncode:
        return
    with tempfile.TemporaryDirectory() as built:
        made = pip("wheel", "--wheel-dir", built, *exact)
        pure = next(Path(built).glob("*-none-any.whl"), None)
        if pure is None:
            said = (made.stderr.strip() or there.stderr.strip() or "it is not pure").splitlines()
            raise ValueError(f"no wheel of {name} {wanted} for Python {PYTHON}: {said[-1]}")
        (out / pure.name).write_bytes(pure.read_bytes())


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip."""
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False
    )


def tracked_bytes(folder: Path) -> int:
    """Return the bytes of the files that git tracks in a folder; 0 where it is no checkout."""
    listed = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    files = (folder / name for name in listed.stdout.split("\0") if name)
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder of the wheels")
    wheels(parser.parse_args().out)
