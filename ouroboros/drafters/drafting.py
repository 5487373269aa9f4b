"""Run the decoding loop on a draft model, to draft a chain of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ouroboros.decode import Decoding, Drafter, RootOnly
from ouroboros.engine.model import CachedModel
from ouroboros.engine.sequence import CachedSequence
from ouroboros.select import TokenSelector, argmax


class DraftLoop:
    """Runs the decoding loop on the draft model `model`, with `drafter` (None: standard decoding).

    The loop keeps its own copy of the sequence and appends only new tokens to it, so the time of a
    step does not grow with the sequence. `drafted` has the tokens of the last draft.
    """

    def __init__(self, model: CachedModel, drafter: Drafter | None = None) -> None:
        self.model = model
        self.drafter = drafter or RootOnly()
        self.reset(argmax)

    def reset(self, choose: TokenSelector) -> None:
        """Begin a prompt. `choose` is the target's selector; the draft model uses it too, so when
        sampling both models draw with the same Gumbel noise."""
        self.choose = choose
        self.sequence: CachedSequence = self.model.new_sequence()
        self._text: list[int] = []
        self._known = 0

    def begin(
        self, tokens: Sequence[int], room: int, choose: TokenSelector | None = None
    ) -> Decoding:
        """Return a `Decoding` that drafts up to `room` tokens after `tokens`, which must extend the
        tokens of the last call. `choose` replaces the selector of `reset`."""
        del self._text[self._known :]
        self._text += tokens[self._known :]
        self._known = len(tokens)
        return Decoding(
            self.model,
            self.drafter,
            self._text,
            room,
            sequence=self.sequence,
            choose=choose or self.choose,
        )

    @property
    def drafted(self) -> list[int]:
        """The tokens of the last draft."""
        return self._text[self._known :]
