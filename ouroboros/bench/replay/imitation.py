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

from ouroboros.bench.replay.recording import Recording
from ouroboros.bench.run.recorder import PrefixKey


@dataclass(frozen=True)
class Rates:
    """How often a prediction off the text is the text's own token at its position: after a node
    whose own token is the text's at *its* position (though its path is not), and after any other.
    """

    after_right: float
    after_wrong: float

    @property
    def title(self) -> str:
        """What is done with them, for the title of what is measured so."""
        shares = f"{self.after_right:g} after a right node, {self.after_wrong:g} after others"
        return f"predictions off the text imitated (right: {shares})"


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


def imitated(text: Sequence[int], place: PrefixKey, rates: Rates, *, seed: int = 0) -> int:
    """Return what a target says at a place off its text, or past its end, drawn by `rates`."""
    along, off = place
    at = along + len(off)
    draw = random.Random(f"{seed}-{at}-{off}")
    known = at < len(text)
    right = known and bool(off) and off[-1] == text[at - 1]
    rate = rates.after_right if right else rates.after_wrong
    return text[at] if known and draw.random() < rate else draw.choice(text)
