"""Compile functions with numba, and cache the machine code.

numba invalidates a cached function only if its own source file changes, but functions are compiled
into their callers. So the name of a cache folder contains a hash of all sources that are compiled
together, and the CPU's name. Without a writable folder every process compiles again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba
from filelock import FileLock

CONFIG: Any = numba.config  # numba sets its attributes when it is imported
Result = TypeVar("Result")
log = logging.getLogger(__name__)


def cache_folder(sources: Sequence[Path]) -> Path | None:
    """Return a writable cache folder for these sources on this CPU; None if there is none."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources))
    name = f"ouroboros-{digest.hexdigest()[:16]}-{llvmlite.binding.get_host_cpu_name()}"
    default = [sources[-1].parent / "__pycache__"]
    with suppress(RuntimeError):  # no home folder
        default.append(Path("~/.cache/numba").expanduser())
    for place in [Path(CONFIG.CACHE_DIR)] if CONFIG.CACHE_DIR else default:  # NUMBA_CACHE_DIR
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place / name, os.W_OK | os.X_OK):
            return place / name
    return None


@contextmanager
def cached_in(folder: Path | None) -> Iterator[dict[str, Any]]:
    """Context manager that yields options for numba's decorators. Functions decorated inside it
    with these options are cached in `folder` (None: not cached)."""
    configured, CONFIG.CACHE_DIR = CONFIG.CACHE_DIR, str(folder or "")
    try:
        yield {"cache": folder is not None}
    finally:
        CONFIG.CACHE_DIR = configured


def njit(function: Callable, folder: Path | None, **options: Any) -> Any:
    """Return a function that numba compiles at its first call, cached in `folder`."""
    with cached_in(folder) as cached:
        return numba.njit(**cached, **options)(function)


def compile_now(compile_all: Callable[[], Result], folder: Path | None, what: str) -> Result:
    """Call `compile_all`, which compiles functions or loads them from the cache `folder`; return
    its result. Log a warning first if the cache is empty; `what` names the functions in it. If the
    folder can be locked, one process compiles while all others wait, then load."""
    if folder is None or not any(folder.rglob("*.nbi")):
        often = "once" if folder else "in each process: set NUMBA_CACHE_DIR to a writable folder"
        log.warning(f"compiling {what} for this machine takes up to 20 s, {often}")
    with ExitStack() as stack:
        if folder is not None:
            with suppress(OSError, NotImplementedError):
                stack.enter_context(FileLock(folder / ".lock"))
        return compile_all()
