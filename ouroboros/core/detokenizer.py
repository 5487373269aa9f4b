"""Text from tokens, token by token: for streaming, stop strings, reports and scores.

A token is looked up, not decoded again: its bytes are cached by tokenizer, and the bytes of all
tokens form one UTF-8 text. So the work per step depends on the new tokens only, not on the length
of the completion. Decoding the whole completion each time would also give another text where bytes
are no UTF-8: tokenizers with byte fallback then replace every byte of the run, even the bytes of
characters that were complete.

Invariant: the text depends on the tokens alone, not on how many were added at a time.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from transformers.convert_slow_tokenizer import bytes_to_unicode

PARTIAL = "\N{REPLACEMENT CHARACTER}"  # how tokenizers decode the bytes of half a character
FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # a byte, in vocabularies with byte fallback
BYTES = {chr(byte): byte for byte in range(256)}  # ByT5's vocabulary
BYTES |= {letter: byte for byte, letter in bytes_to_unicode().items()}  # byte-level vocabularies
KNOWN = 1 << 16  # cached pairs of tokens


class Detokenizer:
    """Decodes a growing completion.

    `after` has the tokens of the prompt: many tokenizers drop the first space of a text, but the
    completion is not its beginning. Special tokens are left out, unless `skip_special` is False.
    Ids that the tokenizer does not have add no text.
    """

    def __init__(self, tokenizer, *, after: Sequence[int] = (), skip_special: bool = True) -> None:
        self._added = _added_bytes(tokenizer, skip_special, len(tokenizer))
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        seen = (token for token in reversed(after) if self._added(None, token) is not None)
        self._before = next(seen, None)

    def add(self, token: int) -> str:
        """Add a token; return the characters that it completes, "" inside a character. Bytes that
        no further token can complete become U+FFFD."""
        added = self._added(self._before, token)
        if added is None:
            return ""
        self._before = token
        return self._utf8.decode(added)

    @property
    def partial(self) -> str:
        """U+FFFD for the bytes of a character that is not complete; "" between characters."""
        return self._utf8.getstate()[0].decode("utf-8", "replace")


def text_of(
    tokenizer, tokens: Sequence[int], *, after: Sequence[int] = (), skip_special: bool = True
) -> str:
    """Return the text of tokens; for the arguments see `Detokenizer`."""
    text = Detokenizer(tokenizer, after=after, skip_special=skip_special)
    return "".join(map(text.add, tokens)) + text.partial


class StopStrings:
    """Finds the first stop string in a growing completion, special tokens included. Call it after
    each step.

    `after` has the tokens of the prompt. A stop string may begin in the prompt if `from_prompt`, as
    in transformers.
    """

    def __init__(
        self,
        tokenizer,
        strings: Sequence[str],
        *,
        after: Sequence[int] = (),
        from_prompt: bool = False,
    ) -> None:
        if "" in strings:
            raise ValueError("a stop string is empty: it would end every completion at once")
        self.strings, self._seen, self._tail = tuple(strings), 0, ""
        self._found: int | None = None
        if self.strings:
            self._text = Detokenizer(tokenizer, after=after, skip_special=False)
            self._reach = max(map(len, self.strings)) - 1
            if from_prompt and self._reach:
                last = after[-4 * self._reach :]  # a character has at most four tokens
                self._tail = text_of(tokenizer, last, skip_special=False)[-self._reach :]

    def __call__(self, new_tokens: Sequence[int]) -> int | None:
        """Return the length of the shortest prefix of `new_tokens` (all new tokens so far) that
        contains a stop string; None if there is none."""
        if not self.strings:
            return None
        for token in new_tokens[self._seen :] if self._found is None else ():
            self._seen, old = self._seen + 1, len(self._tail)
            self._tail += self._text.add(token)
            shown = self._tail + self._text.partial
            if any(shown.find(s, max(0, old - len(s) + 1)) >= 0 for s in self.strings):
                self._found = self._seen
                break
            self._tail = self._tail[max(0, len(self._tail) - self._reach) :]
        return self._found if len(new_tokens) >= (self._found or 0) else None


@lru_cache(maxsize=4)
def _added_bytes(
    tokenizer, skip_special: bool, size: int
) -> Callable[[int | None, int], bytes | None]:
    """Return a cached function (before, token): the bytes that a token adds after the token
    `before` (None: at the beginning of a text), or None for a token without text. `size` is part of
    the cache key only, as tokens may be added to a tokenizer."""
    how = {"skip_special_tokens": skip_special, "clean_up_tokenization_spaces": False}

    def decode(*tokens: int, **other: bool) -> str:
        return tokenizer.decode(list(tokens), **how | other)

    @lru_cache(KNOWN)
    def alone(token: int) -> tuple[str, bytes | None] | None:
        """The text of the token alone, and its bytes if it has half a character."""
        try:
            name, text = tokenizer.convert_ids_to_tokens(token), decode(token)
        except Exception:  # of ids beyond the vocabulary; tokenizers raise all kinds
            return None
        if name is None or (not text and skip_special and decode(token, skip_special_tokens=False)):
            return None
        half = PARTIAL in text or (not text and len(name) == 1)  # ByT5 decodes half as ""
        return text, _bytes_of(name) if half else None

    @lru_cache(KNOWN)
    def added(before: int | None, token: int) -> bytes | None:
        if (own := alone(token)) is None:
            return None
        text, half = own
        if half is not None:
            return half
        if before is not None and (first := alone(before)):
            whole = decode(before, token)
            rest = whole[len(first[0]) :]
            if whole.startswith(first[0]) and PARTIAL not in rest:
                text = rest
        return text.encode()

    return added


def _bytes_of(name: str | bytes) -> bytes | None:
    """Return the bytes that a token of a vocabulary of bytes stands for; None for other tokens."""
    if isinstance(name, bytes):  # tokenizers around tiktoken
        return name
    if fallback := FALLBACK.fullmatch(name):
        return bytes.fromhex(fallback[1])
    return bytes(map(BYTES.__getitem__, name)) if BYTES.keys() >= set(name) else None
