"""One decoder at work on one prompt: its text so far, who proposed it, and a clock of its own.

Invariant: the clock runs in `step` alone, so that decoders which take turns do not count each
other's time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from ouroboros.decode import Drafter, stream
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector

Piece = tuple[str, str]
"""Text and the source of its last token, one of `StepRecord.sources`."""


class Runner:
    """`name` decodes `prompt`; `pieces` are what it has added so far."""

    def __init__(
        self,
        name: str,
        target: CachedModel,
        drafter: Drafter,
        prompt: Sequence[int],
        *,
        max_new: int,
        eos: frozenset[int],
        choose: TokenSelector,
    ) -> None:
        self.name = name
        self.pieces: list[Piece] = []
        self.seconds = 0.0
        self.done = False
        self._text = TextStream(target.tokenizer.backend_tokenizer, prompt)
        self._traces = stream(target, drafter, prompt, max_new=max_new, eos=eos, choose=choose)
        self.tokens: list[int] = []
        self.calls = 0

    def step(self) -> list[Piece]:
        """Take one turn of the loop; return the text that it added, [] at the end."""
        started = time.perf_counter()
        trace = next(self._traces, None)
        self.seconds += time.perf_counter() - started
        self.done = trace is None
        if trace is None or not trace.steps:
            return []
        fresh = trace.new_tokens[len(self.tokens) :]
        self.tokens += fresh
        self.calls += 1
        sources = trace.steps[-1].sources
        added = [(self._text.add(t), s) for t, s in zip(fresh, sources, strict=True)]
        self.pieces += added
        return added

    def figures(self) -> tuple[str, str]:
        """Return tokens, seconds and tokens/s as text, and tokens per target call."""
        count = len(self.tokens)
        rate = count / self.seconds if self.seconds else 0.0
        each = count / max(1, self.calls)
        return (
            f"{count} tokens in {self.seconds:.2f} s, {rate:.1f} tokens/s",
            f"{each:.2f} tokens per target call",
        )


class TextStream:
    """Tokens into text as they come. A token that ends inside a character adds "", and the one that
    ends it the whole character; special tokens add nothing."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        for token in prompt:
            self.add(token)

    def add(self, token: int) -> str:
        """Return the text that is certain now and was not before."""
        return self._stream.step(self._tokenizer, token) or ""
