"""A draft model simulated on recorded text at a given agreement: what would such a draft be worth?

It takes the place of a draft's `CachedModel` and answers with logits. After the recorded text so
far, the recorded next token is its first choice in a share `agreement` of all new tokens; where it
is not, ranks and confidences are drawn from a measured `DraftErrorModel`. Off the recorded text its
choices are tokens of the text so far.

Invariant: an answer depends on seed, text, position and the tokens before it alone, so every
decoder meets the same draft, whatever it asks in whatever order; and a draft of a higher agreement
is right wherever one of a lower agreement is.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from scipy.optimize import brentq

from ouroboros.bench.replay.draft_errors import CHOICES, NOWHERE, DraftErrorModel, repeats
from ouroboros.bench.replay.recording import RecordedRun, RecordedRuns
from ouroboros.bench.replay.scripted import ANY, ScriptedModel
from ouroboros.bench.run.recorder import PrefixKey, prefix_keys
from ouroboros.engine.sequence import CachedSequence
from ouroboros.tree import TokenTree

CONTEXT = 4  # tokens before a place that its answer depends on
NEAR_END = 64  # a sequence is compared with the text over this many last tokens


class Answer(NamedTuple):
    """The five best ids after a place, their log-probabilities, and that of any other id."""

    ids: tuple[int, ...]
    logs: tuple[float, ...]
    other: float


class SimulatedDraft(ScriptedModel):
    """A draft that agrees with recorded runs in a share `agreement` of their new tokens.

    Ids are below `vocab_size`; `follow` selects the text. Calls take no time, and are counted as a
    model's are. Raises `ValueError` for an agreement outside 0 to 1 and for ids beyond the
    vocabulary.
    """

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self,
        agreement: float,
        runs: Sequence[RecordedRun],
        *,
        vocab_size: int,
        errors: DraftErrorModel | None = None,
        seed: int = 0,
        max_len: int = ANY,
        tokenizer=None,
    ) -> None:
        super().__init__(max_len, vocab_size=vocab_size, tokenizer=tokenizer)
        if not 0 <= agreement <= 1:
            raise ValueError(f"draft.agreement={agreement}: give a share from 0 to 1")
        highest = max((max(run.tokens) for run in runs), default=0)
        if vocab_size <= max(highest, CHOICES):
            raise ValueError(f"the recording has id {highest}, the vocabulary {vocab_size} ids")
        self.agreement, self.seed = agreement, seed
        self.errors = DraftErrorModel.load() if errors is None else errors
        again = [one for run in runs for one in repeats(run.tokens)[len(run.prompt) :]]
        self._rates = rates_at(agreement, self.errors.odds, sum(again) / max(1, len(again)))
        self.width = vocab_size
        self.follow(())

    @classmethod
    def of(cls, agreement: float, recorded: RecordedRuns, tokenizer, **options) -> SimulatedDraft:
        """Return a draft for recorded runs, with their context and the tokenizer's vocabulary."""
        ids = min(1 + max(tokenizer.get_vocab().values()), recorded.vocab_size)
        limits = {"vocab_size": ids, "max_len": recorded.max_len, "tokenizer": tokenizer}
        return cls(agreement, recorded.runs, **limits, **options)

    @property
    def title(self) -> str:
        """What it is, for the title of everything measured with it."""
        return f"draft simulated at agreement {self.agreement:g} ({self.errors.source})"

    def follow(self, text: Sequence[int]) -> None:
        """Begin another recorded text (prompt and continuation)."""
        self.text = tuple(text)
        self._again = repeats(self.text)
        self._key = f"{self.seed}-{zlib.crc32(repr(self.text).encode())}"
        self._answers: dict[PrefixKey, Answer] = {}

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return the logits after `tree.logit_nodes`, [len(tree.logit_nodes), width] float32."""
        if tokens[-1] != tree.tokens[0]:
            raise ValueError(
                f"the tree's root is {tree.tokens[0]}, the sequence's last token {tokens[-1]}: "
                "root the tree at tokens[-1]"
            )
        first = tree.logit_nodes[0]
        last = sequence.tree if sequence.base == len(tokens) - 1 else None
        grown = last is not None and last.tokens[:first] == tree.tokens[:first]
        sequence.calls += 1
        sequence.forwards += 1
        sequence.scored += len(tree) - (min(first, len(last)) if last and grown else 0)
        sequence.tree, sequence.base = tree, len(tokens) - 1
        by_node = list(prefix_keys(len(tokens), tree, self.text, off=self._off(tokens)))
        answers = [self._answer(by_node[node]) for node in tree.logit_nodes]
        logits = torch.tensor([[one.other] for one in answers]).repeat(1, self.width)
        ids = torch.tensor([one.ids for one in answers])
        return logits.scatter_(1, ids, torch.tensor([one.logs for one in answers]))

    def _off(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens from where a sequence leaves the text."""
        near = max(0, len(tokens) - NEAR_END)
        start = near if tuple(tokens[:near]) == self.text[:near] else 0
        for at in range(start, len(tokens)):
            if at >= len(self.text) or tokens[at] != self.text[at]:
                return tokens[at:]
        return ()

    def _answer(self, place: PrefixKey) -> Answer:
        """Return the answer at a place: rank of the truth, confidence and ids, drawn by the place.

        Off the text there is no truth, but the draft is as confident.
        """
        if place in self._answers:
            return self._answers[place]
        along, off = place
        near = (*self.text[max(0, along - CONTEXT) : along], *off)[-CONTEXT:]
        draw = random.Random(f"{self._key}-{along + len(off)}-{near}-{bool(off)}")
        truth = self.text[along] if not off and along < len(self.text) else None
        rank = self._rank(draw, again=truth is not None and self._again[along])
        row = draw.choice(self.errors.confidence[rank])
        ids = self._others(draw, self.text[:along], truth)
        if rank != NOWHERE and truth is not None:
            ids[rank - 1] = truth
        self._answers[place] = Answer(tuple(ids), *_log_shares(row, self.width))
        return self._answers[place]

    def _rank(self, draw: random.Random, *, again: bool) -> int:
        right, among = draw.random() < self._rates[again], draw.random()
        if right:
            return 1
        for rank, share in self.errors.shares.items():
            among -= share
            if among < 0:
                return rank
        return NOWHERE

    def _others(self, draw: random.Random, before: Sequence[int], truth: int | None) -> list[int]:
        """Draw different ids of the text before (any id where it has too few), never the truth."""
        ids: list[int] = []
        tries = 0
        while len(ids) < CHOICES:
            known = before and tries < 8 * CHOICES
            drawn = draw.choice(before) if known else draw.randrange(self.width)
            tries += 1
            if drawn != truth and drawn not in ids and drawn < self.width:
                ids.append(drawn)
        return ids


def rates_at(agreement: float, odds: float, share: float) -> tuple[float, float]:
    """Return the agreement elsewhere and where the text repeats itself, which is a `share` of it.

    The odds of the second are `odds` times those of the first; both together give `agreement`.

    >>> elsewhere, at_repeats = rates_at(0.8, 4.0, 0.5)
    >>> round(elsewhere, 3), round(at_repeats, 3), round((elsewhere + at_repeats) / 2, 3)
    (0.698, 0.902, 0.8)
    """
    if agreement in (0, 1):
        return agreement, agreement

    def at_repeats(elsewhere: float) -> float:
        return odds * elsewhere / (1 - elsewhere + odds * elsewhere)

    def missing(elsewhere: float) -> float:
        return share * at_repeats(elsewhere) + (1 - share) * elsewhere - agreement

    elsewhere = float(brentq(missing, 0.0, 1.0))
    return elsewhere, at_repeats(elsewhere)


@cache
def _log_shares(row: tuple[float, ...], width: int) -> tuple[tuple[float, ...], float]:
    """Return the logs of descending probabilities, made to descend strictly, and that of each of
    the other `width` ids, which share the rest and rank behind the last.

    >>> [round(math.exp(log), 3) for log in _log_shares((0.6, 0.2, 0.1, 0.05, 0.0), 105)[0]]
    [0.6, 0.2, 0.1, 0.05, 0.0]
    """
    falling: list[float] = []
    for share in row:
        most = 0.99 * falling[-1] if falling else 1.0
        falling.append(min(max(share, 1e-6), most))
    other = max(1e-12, 1.0 - sum(falling)) / (width - len(falling))
    return tuple(map(math.log, falling)), math.log(min(other, falling[-1] / 2))
