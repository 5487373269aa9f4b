"""Compiled where numba is there, plain Python where it is not: the same functions either way.

Functions marked `compiled` are written in the part of Python that both run: numbers, loops, and
state by attribute and index. Compiled, the state is a NumPy record; in plain Python it is lists in
a namespace, five times as fast there as NumPy's scalars. A test holds the two together.

The environment's OUROBOROS_COMPILED=0 asks for plain Python.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)


def _numba() -> tuple[Callable | None, str]:
    """Return numba's decorator; or None and why it cannot be used."""
    if os.environ.get("OUROBOROS_COMPILED") == "0":
        return None, "OUROBOROS_COMPILED=0"
    try:
        from numba import njit

        njit(cache=True)(_numba)  # without a folder for its cache this raises
    except ImportError:
        return None, "numba is not installed (pip install numba)"
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        return None, f"{reason} (set NUMBA_CACHE_DIR to a folder that can be written)"
    return njit, ""


_njit, WHY_NOT = _numba()
COMPILED = _njit is not None


def _sources() -> str:
    """Return a name for all of the room's code."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


_SOURCES = _sources() if COMPILED else ""


def compiled(function: Function) -> Function:
    """Compile a function at its first call, or load what was compiled before."""
    if _njit is None:
        return function
    dispatcher = _njit(cache=True)(function)
    # numba takes its cache for stale when the function's own file changes; a function compiled into
    # its callers is stale when any of the room's files does
    dispatcher._cache._cache_file._source_stamp = _SOURCES
    return dispatcher


class Direct:
    """A compiled function called without a look at its arguments' types, after the first call.

    For functions that the host calls in each step: to tell the types of a record and of a dozen
    arrays takes numba as long as the work. Invariant: a caller hands over the same types each time.
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


def directly(function: Function) -> Function | Direct:
    """Compile a function that the host calls, always with the same types of arguments."""
    return Direct(compiled(function)) if COMPILED else function
