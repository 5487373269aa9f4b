"""Ctrl-C in two stages: the first lets the sample in progress end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Within it, the first signal is noted and `on_first` called; a second one raises
    `KeyboardInterrupt` where the program stands. Outside the main thread signals stay as they are.
    `on_first` runs inside a signal handler, perhaps in the middle of a print: it may not print.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self.asked = False
        self._on_first = on_first
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self, agree: Callable[[bool], bool] = bool) -> None:
        """Raise `KeyboardInterrupt` if a signal came: called where ending costs nothing. `agree`
        says of whether one came here whether one came to any process."""
        if agree(self.asked):
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_first()
