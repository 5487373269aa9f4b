"""The file of the searches that were ended: one that was is not made again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from ouroboros.bench.run.folder import JsonLines, locked, read_lines


class Ended:
    """Searches by their keys, each on the disk from its end on."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._lines = JsonLines(file, path)
        self._rows = {row["key"]: row for _, row in read_lines(path)}

    def of(self, key: str, search: Callable[[], dict]) -> dict:
        """Return what the search of this key ended at: `search()`, where none was."""
        if key not in self._rows:
            self._rows[key] = {"key": key, **search()}
            self._lines.append(self._rows[key])
        return self._rows[key]


@contextlib.contextmanager
def ended_searches(path: Path) -> Iterator[Ended]:
    """Open the file, for this process alone. Raises as `locked` and `read_lines`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path) as file:
        yield Ended(file, path)
