"""Simulate a draft model on recorded text, to see how fast a draft of a given agreement would be.

The agreement is the share of new tokens that the draft model ranks first, given the recorded text
before them. The simulated draft replaces a draft's `CachedModel`; the rank of the right token and
the probabilities are sampled from a measured `DraftErrorModel`. After draft tokens that differ from
the text, its choices are random tokens of the text so far.

Invariant: the logits depend only on seed, text, position and preceding tokens, so every decoder
gets the same draft, whatever the order of its calls. A draft of higher agreement is right at every
position at which one of lower agreement is right. With an acceptance curve, the logits also depend
on the position in the draft.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq

from ouroboros.bench.replay.recording import RecordedRuns
from ouroboros.bench.replay.scripted import ANY, ScriptedModel
from ouroboros.bench.run.tree_recorder import PrefixKey, prefix_keys
from ouroboros.engine.sequence import CachedSequence
from ouroboros.tree import TokenTree

CHOICES = 5
NOWHERE = 0  # the rank of the right token if it is not among the choices
CONTEXT = 4  # tokens before a position that affect its logits
NEAR_END = 64  # last tokens of a sequence that are compared with the text
SHIPPED = Path(__file__).with_name("draft_errors.json")


@dataclass(frozen=True)
class DraftErrorModel:
    """A draft model's errors and probabilities, measured on a pair.

    - `shares`: {rank, 2 to 5: the share of wrong first choices at which the right token has this
      rank}; at the remaining ones, it is not among the best five tokens
    - `confidence`: {rank of the right token, or `NOWHERE`: the probabilities of the best five
      tokens, descending, at some recorded positions}
    - `odds`: the odds of agreement at repeated tokens (see `repeats`) / the odds elsewhere; a draft
      is right more often where an n-gram lookup is right too
    - `about`: a description of the pair in plain values
    """

    shares: Mapping[int, float]
    confidence: Mapping[int, Sequence[tuple[float, ...]]]
    odds: float = 1.0
    about: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = SHIPPED) -> DraftErrorModel:
        """Read an error model that scripts/reproduce/draft_errors.py wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        shares = {int(rank): float(share) for rank, share in values["shares"].items()}
        rows = {int(k): [tuple(row) for row in own] for k, own in values["confidence"].items()}
        return cls(shares, rows, float(values["odds"]), values["about"])

    @property
    def source(self) -> str:
        """The pair that was measured, as text for titles."""
        return f"ranks and confidences of {self.about.get('pair', 'a pair')}"


def read_curve(path: Path) -> list[float]:
    """Read an acceptance curve: entry k - 1 is the share of drafts whose first k tokens are
    accepted.

    The file is a JSON list, a result of `vllm bench serve` or a CSV table whose last column is the
    curve. If a value is above 1, all are read as mean acceptance lengths for 1, 2, ... draft
    tokens, and their differences are the curve. Raises `ValueError` for anything else.
    """
    try:
        if path.suffix == ".csv":
            curve = pd.read_csv(path).iloc[:, -1].astype(float).tolist()
        else:
            curve = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(curve, dict):
                curve = curve["spec_decode_per_position_acceptance_rates"]
            curve = [float(share) for share in curve]
        return np.diff([1.0, *curve]).tolist() if max(curve) > 1 else curve
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: give acceptance rates by position, as [0.8, 0.6]") from error


class SimulatedDraft(ScriptedModel):
    """A draft model that is right for a share `agreement` of the recorded runs' new tokens.

    If `agreement` is an acceptance curve (see `read_curve`), the share depends on the position in
    the draft instead; positions beyond the curve behave like its last one. Before replaying a run,
    call `follow` with its text; before each step, set `accepted` to the number of tokens of the
    sequence. Calls are counted like a model's but take no time. Raises `ValueError` for an
    agreement outside 0 to 1, for a rising curve, and for ids outside the vocabulary.
    """

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self,
        agreement: float | Sequence[float],
        recorded: RecordedRuns,
        *,
        errors: DraftErrorModel | None = None,
        seed: int = 0,
        tokenizer=None,
    ) -> None:
        ids = 1 + max(tokenizer.get_vocab().values()) if tokenizer else ANY
        size, runs = min(ids, recorded.vocab_size), recorded.runs
        super().__init__(recorded.max_len, vocab_size=size, tokenizer=tokenizer)
        curve = [1.0, *(agreement if isinstance(agreement, Sequence) else [agreement])]
        if len(curve) < 2 or curve[-1] < 0 or any(b > a for a, b in pairwise(curve)):
            raise ValueError(
                f"draft.agreement={agreement}: give a share from 0 to 1, or a share for each draft "
                "position, none above the one before"
            )
        highest = max((max(run.tokens) for run in runs), default=0)
        if size <= max(highest, CHOICES):
            raise ValueError(f"the recording has id {highest}, the vocabulary {size} ids")
        self.agreement, self.seed = agreement, seed
        self.errors = DraftErrorModel.load() if errors is None else errors
        again = [one for run in runs for one in repeats(run.tokens)[len(run.prompt) :]]
        share = sum(again) / max(1, len(again))
        if isinstance(agreement, Sequence):  # conditional on all earlier positions being right
            self._rates = [(b / a if a else 0.0,) * 2 for a, b in pairwise(curve)]
        else:
            self._rates = [rates_at(agreement, self.errors.odds, share)]
        self.follow(())

    @property
    def title(self) -> str:
        """The agreement and the measured pair, for the title of a replay."""
        shares = self.agreement if isinstance(self.agreement, Sequence) else [self.agreement]
        agreement = ", ".join(f"{share:g}" for share in shares) + " by position" * (len(shares) > 1)
        return f"draft simulated at agreement {agreement} ({self.errors.source})"

    def follow(self, text: Sequence[int]) -> None:
        """Simulate drafts on `text` (a recorded prompt and its continuation) from now on."""
        self.text, self.accepted = tuple(text), 0
        self._again = repeats(self.text)
        self._key = f"{self.seed}-{zlib.crc32(repr(self.text).encode())}"
        self._choices: dict[tuple, tuple[list[int], tuple[float, ...], float]] = {}

    def score(
        self, sequence: CachedSequence, tokens: Sequence[int], tree: TokenTree
    ) -> torch.Tensor:
        """Return simulated logits after `tree.logit_nodes`, [len(tree.logit_nodes), vocab_size]."""
        first = tree.logit_nodes[0]
        last = sequence.tree if sequence.base == len(tokens) - 1 else None
        grown = last is not None and last.tokens[:first] == tree.tokens[:first]
        sequence.calls += 1
        sequence.forwards += 1
        sequence.scored += len(tree) - (min(first, len(last)) if last and grown else 0)
        sequence.tree, sequence.base = tree, len(tokens) - 1
        near = max(0, len(tokens) - NEAR_END)
        start = near if tuple(tokens[:near]) == self.text[:near] else 0
        length = len(self.text)
        left = (a for a in range(start, len(tokens)) if a >= length or tokens[a] != self.text[a])
        off = tokens[next(left, len(tokens)) :]
        by_node = list(prefix_keys(len(tokens), tree, self.text, off=off))
        ids, logs, others = zip(*(self._choice(by_node[n]) for n in tree.logit_nodes), strict=True)
        logits = torch.tensor(others)[:, None].repeat(1, self.vocab_size)
        return logits.scatter_(1, torch.tensor(ids), torch.tensor(logs))

    def _choice(self, key: PrefixKey) -> tuple[list[int], tuple[float, ...], float]:
        """Return the five best ids after the sequence `key`, their logits, and the logit that all
        other ids share."""
        along, off = key
        position = min(along + len(off) - self.accepted, len(self._rates) - 1)
        if (key, position) in self._choices:
            return self._choices[key, position]
        before = self.text[:along]
        near = (*before[-CONTEXT:], *off)[-CONTEXT:]
        draw = random.Random(f"{self._key}-{along + len(off)}-{near}-{bool(off)}")
        truth = self.text[along] if not off and along < len(self.text) else None
        right = draw.random() < self._rates[position][truth is not None and self._again[along]]
        among, rank = draw.random(), 1 if right else NOWHERE
        for missed, share in self.errors.shares.items():
            among -= share
            if among < 0 and rank == NOWHERE:
                rank = missed
        row = draw.choice(self.errors.confidence[rank])
        ids: list[int] = []
        tries = 0
        while len(ids) < CHOICES:  # ids from the text so far, or any id if there are too few
            known = before and tries < 8 * CHOICES
            drawn = draw.choice(before) if known else draw.randrange(self.vocab_size)
            tries += 1
            if drawn != truth and drawn not in ids and drawn < self.vocab_size:
                ids.append(drawn)
        if rank != NOWHERE and truth is not None:
            ids[rank - 1] = truth
        self._choices[key, position] = ids, *_log_shares(row, self.vocab_size)
        return self._choices[key, position]


def repeats(text: Sequence[int]) -> list[bool]:
    """Return, for each token, whether the same token also followed the previous occurrence of the
    two tokens before it.

    >>> repeats([1, 2, 3, 1, 2, 3])
    [False, False, False, False, False, True]
    """
    last: dict[tuple[int, int], int] = {}
    found = [False] * min(2, len(text))
    for before, near, token in zip(text, text[1:], text[2:], strict=False):
        found.append(last.get((before, near)) == token)
        last[before, near] = token
    return found


def rates_at(agreement: float, odds: float, share: float) -> tuple[float, float]:
    """Return the agreement at tokens that are no repeats (see `repeats`), and at repeats.

    Repeats are a `share` of the text. The odds of agreement at repeats are `odds` times the odds
    elsewhere; the mean agreement is `agreement`.

    >>> elsewhere, at_repeats = rates_at(0.8, 4.0, 0.5)
    >>> round(elsewhere, 3), round(at_repeats, 3), round((elsewhere + at_repeats) / 2, 3)
    (0.698, 0.902, 0.8)
    """

    def at_repeats(elsewhere: float) -> float:
        return odds * elsewhere / (1 - elsewhere + odds * elsewhere)

    def missing(elsewhere: float) -> float:
        return share * at_repeats(elsewhere) + (1 - share) * elsewhere - agreement

    elsewhere = agreement if agreement in (0, 1) else float(brentq(missing, 0.0, 1.0))
    return elsewhere, at_repeats(elsewhere)


@cache
def _log_shares(row: tuple[float, ...], width: int) -> tuple[tuple[float, ...], float]:
    """Return the log probabilities of the best ids (`row`, made strictly descending), and the log
    probability of each other id.

    The other ids (of `width` ids in all) share the remaining probability equally and rank last.

    >>> [round(math.exp(log), 3) for log in _log_shares((0.6, 0.2, 0.1, 0.05, 0.0), 105)[0]]
    [0.6, 0.2, 0.1, 0.05, 0.0]
    """
    falling: list[float] = []
    for share in row:
        most = 0.99 * falling[-1] if falling else 1.0
        falling.append(min(max(share, 1e-6), most))
    other = max(1e-12, 1.0 - sum(falling)) / (width - len(falling))
    return tuple(map(math.log, falling)), math.log(min(other, falling[-1] / 2))
