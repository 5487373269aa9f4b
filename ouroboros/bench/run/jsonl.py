"""Files of JSON lines that survive a kill: one process appends, others read whole lines.

Invariant: a line that was appended is on the disk; a torn last line is never read, and dropped
before the next one is written. What is complete may be packed: it is read as before, and refuses
to be appended to.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


class JsonLines:
    """A locked file to append to, its torn last line dropped."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path = file, path
        file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def append(self, row: dict) -> None:
        """Write one line, on the disk when this returns. Raises as `named_errors`."""
        with named_errors(self._path):
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[TextIO]:
    """Open a file to append to, for this process alone.

    Raises `ValueError` where another has it, or where it is packed.
    """
    if _packed(path).exists():
        raise ValueError(f"{_packed(path)} is complete and packed: gunzip it to go on with it")
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{path.parent}: another run is writing here") from error
        yield file


def read_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield (number, object) of each whole line; nothing where there is no file.

    Raises `ValueError` with the line's number where it is no JSON.
    """
    if not there(path):
        return
    packed = _packed(path)
    read = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    text = read.decode("utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: damaged JSON") from error


def there(path: Path) -> bool:
    """Whether there are lines, packed or not."""
    return path.exists() or _packed(path).exists()


def pack(path: Path) -> None:
    """Replace the file by PATH.gz, a tenth as large: numbers have six decimals, seconds are to the
    microsecond."""
    rows = [
        json.dumps(json.loads(line, parse_float=lambda text: round(float(text), 6))) + "\n"
        for line in path.read_text("utf-8").splitlines()
    ]
    part = path.with_name(f"{path.name}.gz.part")
    part.write_bytes(gzip.compress("".join(rows).encode(), mtime=0))
    part.replace(_packed(path))
    path.unlink()


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn a full disk into one clear line: `OSError` with the file and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"the disk is full while writing {path}: free some space and give the same command "
            "again; finished samples are kept"
        ) from error
