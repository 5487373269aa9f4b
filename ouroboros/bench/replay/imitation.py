"""A target imitated: any drafter at any settings against a text, with no target to ask.

On the recorded text the imitation says what the target said. Off it, where a drafter that learns
from rejected nodes looks too, it errs like the target: its prediction is the text's own token at
that position as often as the target's was, by two rates that one short recorded run gives; else it
is some token of the text. So a few measured points stand for every setting.

Invariant: for drafters that learn from accepted tokens only, the counts are exactly a live run's;
for the others (Jacobi windows, phrases from verification) they are an estimate. Predictions are
drawn by place, so the same question always has the same answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ouroboros.bench.replay.recorded_target import RecordedTarget, Replayed, drafts_as_recorded
from ouroboros.bench.replay.recording import Recording, Tape
from ouroboros.bench.run.recorder import Place, places
from ouroboros.choose import Ranked
from ouroboros.decode import Drafter, Traits, stream
from ouroboros.trace import DecodeTrace, cut
from ouroboros.tree import TokenTree


@dataclass(frozen=True)
class Rates:
    """How often a prediction off the text is the text's own token at its position: after a node
    whose own token is the text's at *its* position (though its path is not), and after any other.
    """

    after_right: float
    after_wrong: float


USUAL = Rates(0.7, 0.04)
"""Counted on the reference pair, development text, greedy: 0.64 to 0.80 and 0.03 to 0.05 over
lookahead and Ouroboros at small and large windows."""


def rates_of(runs: Iterable[Recording]) -> Rates | None:
    """Return the rates in recorded predictions; None where a kind of place never occurred."""
    hits, tries = [0, 0], [0, 0]
    for run in runs:
        text = run.tokens
        for (along, off), token in run.predictions.items():
            at = along + len(off)
            if off and at < len(text):
                right = off[-1] == text[at - 1]
                hits[right] += token == text[at]
                tries[right] += 1
    return Rates(hits[1] / tries[1], hits[0] / tries[0]) if all(tries) else None


class ImitatedChoice:
    """The recorded token after each node on the text; off it, a token drawn by `rates`."""

    def __init__(self, recording: Recording, rates: Rates, *, seed: int = 0) -> None:
        self.text = recording.tokens
        self.rates = rates
        self.seed = seed
        self._drawn: dict[Place, int] = {}

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        found = list(places(len(tokens), tree, self.text))
        return [self._at(found[node]) for node in tree.asked]

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        raise NotImplementedError("an imitated target knows no runners-up")

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        raise NotImplementedError("an imitated target knows no scores")

    def _at(self, place: Place) -> int:
        along, off = place
        if not off and along < len(self.text):
            return self.text[along]
        if place not in self._drawn:
            self._drawn[place] = self._draw(along + len(off), off)
        return self._drawn[place]

    def _draw(self, at: int, off: tuple[int, ...]) -> int:
        """Draw the prediction for position `at`, after the tokens `off` that leave the text."""
        draw = random.Random(f"{self.seed}-{at}-{off}")
        known = at < len(self.text)
        right = known and bool(off) and off[-1] == self.text[at - 1]
        rate = self.rates.after_right if right else self.rates.after_wrong
        return self.text[at] if known and draw.random() < rate else draw.choice(self.text)


def imitate(
    drafter: Drafter, tape: Tape, recording: Recording, *, rates: Rates = USUAL, seed: int = 0
) -> DecodeTrace:
    """Return the trace of a run of `drafter` on a recorded text; its times are not the target's.

    Raises `ValueError` for a decoder that is no drafter, accepts by rejection sampling, or drafts
    in another dtype than the recording's.
    """
    drafts_as_recorded(drafter, tape)
    draft = Traits.of(drafter).draft
    if draft is not None:
        draft.tokens = []
    choose = tape.sampling.choose(recording.example, recording.repeat, vocab=tape.vocab_size)
    said = len(recording.new_tokens)
    for trace in stream(
        RecordedTarget(tape),  # type: ignore[arg-type]
        Imagined(drafter, choose),
        recording.prompt,
        max_new=tape.max_new or said,
        eos=tape.eos,
        choose=ImitatedChoice(recording, rates, seed=seed),
    ):
        if len(trace.new_tokens) >= said:
            break
    return cut(trace, said) if recording.finish == "stop" else trace


class Imagined(Replayed):
    """The drafter under imitation: it drafts by its own choice, and learns whatever it is told."""

    def observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Let the drafter learn."""
        self.drafter.observe(tree, chosen, path)
