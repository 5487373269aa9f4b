"""Stop strings on top of token ids: where a completion ends, the same for every decoder.

`decode()` knows only end-of-sequence ids. Invariant: what is kept depends on the tokens alone (the
shortest prefix of them whose text contains a stop string), never on how many of them a decoder
produced at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Stop = Callable[[Sequence[int]], int | None]
"""Given the new tokens so far, how many of them to keep, or None to go on."""


class StopStrings:
    """Watches one growing completion; call it with all its new tokens after each step.

    Only the tail is decoded: the tokens not seen yet, and before them as many as the longest stop
    string has bytes, since a token is one byte or more.
    """

    def __init__(self, tokenizer, strings: Sequence[str]) -> None:
        if "" in strings:
            raise ValueError("a stop string is empty: it would end every completion at once")
        self.tokenizer = tokenizer
        self.strings = tuple(strings)
        self._reach = max((len(s.encode()) for s in self.strings), default=0) + 4
        self._seen = 0

    def __call__(self, new_tokens: Sequence[int]) -> int | None:
        """Return the length of the shortest prefix that contains a stop string, or None so far."""
        if not self.strings:
            return None
        start = max(0, self._seen - self._reach)
        if self._stops(new_tokens[start:]):
            ends = range(self._seen + 1, len(new_tokens) + 1)
            return next(end for end in ends if self._stops(new_tokens[start:end]))
        self._seen = len(new_tokens)
        return None

    def _stops(self, tokens: Sequence[int]) -> bool:
        text = text_of(self.tokenizer, tokens)
        return any(string in text for string in self.strings)


def text_of(tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of some tokens, exactly: no clean-up of spaces, no special tokens."""
    return tokenizer.decode(
        list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
