"""A drafter's own copy of the sequence, to which a small model may append its draft."""

from __future__ import annotations

from collections.abc import Sequence


class Scratch:
    """A copy of the growing sequence, with room for a draft behind it.

    It is brought up to date, not copied, so a step costs the same at every length.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._known = 0

    def reset(self) -> None:
        """Forget the sequence."""
        self._text, self._known = [], 0

    def at(self, tokens: Sequence[int]) -> list[int]:
        """Return the sequence, which has only grown since the last call (or `reset`), as a list
        that may be appended to until the next call."""
        del self._text[self._known :]
        self._text += tokens[self._known :]
        self._known = len(tokens)
        return self._text
