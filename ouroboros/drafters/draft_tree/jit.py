"""Compile the drafter's functions with numba, and cache their machine code on disk.

numba compares a cached function with its own source file only, but functions are compiled into
their callers, so the cache folder is named after all sources of this package and the CPU. Without a
writable folder nothing is cached, and every process compiles anew. NUMBA_DISABLE_JIT=1 runs the
functions as Python, for debugging.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba

Function = TypeVar("Function", bound=Callable)


def cache_folder() -> Path | None:
    """Return a writable folder for this package's machine code on this CPU, None without one."""
    package = Path(__file__).parent
    sources = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(package.glob("*.py"))))
    name = f"ouroboros-{sources.hexdigest()[:16]}-{llvmlite.binding.get_host_cpu_name()}"
    places = [package / "__pycache__", Path("~/.cache/numba").expanduser()]
    if numba.config.CACHE_DIR:  # NUMBA_CACHE_DIR
        places = [Path(numba.config.CACHE_DIR)]
    for place in places:
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place / name, os.W_OK | os.X_OK):
            return place / name
    return None


CACHE = cache_folder()
CACHED = CACHE is not None and any(CACHE.rglob("*.nbi"))
"""Whether an earlier process has compiled these functions."""


def jit(function: Function) -> Function:
    """Compile a function at its first call, or load its cached machine code."""
    if CACHE is None:
        return numba.njit(function)
    configured, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(CACHE)
    try:
        return numba.njit(cache=True)(function)
    finally:
        numba.config.CACHE_DIR = configured


class HostCall:
    """A compiled function that the host calls in every step, without numba's type dispatch.

    Examining the types of a record and a dozen arrays takes numba as long as the work itself.
    Invariant: every call passes the same types.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self.call: Callable | None = None

    def __call__(self, *args: Any) -> Any:
        if self.call is not None:
            return self.call(*args)
        result = self.dispatcher(*args)
        self.call = self.dispatcher.get_overload(self.dispatcher.signatures[0])
        return result


def host_jit(function: Function) -> Function | HostCall:
    """Compile a function that the host calls in every step, always with the same types."""
    return function if numba.config.DISABLE_JIT else HostCall(jit(function))
