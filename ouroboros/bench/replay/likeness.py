"""How a draft model errs and how sure it is, measured on a pair: what an imitated one is made of.

Everything hangs on where the truth stands among the draft's choices. How often it is first is the
agreement, which is asked for. Data is how much oftener where the text repeats itself than elsewhere
(a draft is right where a look-up is right too, so the two are worth less together than if they
erred apart), how often the truth is second to fifth where it is not first, and how probable the
draft takes its five best then. Invariant: an imitation invents no figure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch

from ouroboros.decode import RootOnly, decode
from ouroboros.engine.model import CachedModel
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

CHOICES = 5
NOWHERE = 0  # the rank of a truth that is none of the choices
ROWS = 48  # kept of each rank
SHIPPED = Path(__file__).with_name("likeness.json")


@dataclass(frozen=True)
class DraftErrorModel:
    """`shares[rank]`: among the misses, how often the truth is the draft's choice of that rank (2
    to 5); what lacks to 1 are truths nowhere near. `confidence[rank]`: probabilities of the five
    best choices, descending, where the truth is of that rank (`NOWHERE` too); every row stands for
    as many places. `odds`: the odds of agreement where the text repeats itself (`repeats`) over
    those elsewhere. `about` says in plain values what was measured.
    """

    shares: Mapping[int, float]
    confidence: Mapping[int, Sequence[tuple[float, ...]]]
    odds: float = 1.0
    about: Mapping[str, object] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write JSON, which `load` reads."""
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path = SHIPPED) -> DraftErrorModel:
        """Read what `save` wrote. Raises `ValueError` for anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            shares = {int(rank): float(share) for rank, share in values["shares"].items()}
            rows = {int(k): [tuple(row) for row in own] for k, own in values["confidence"].items()}
            if set(rows) != {NOWHERE, 1, *shares} or not all(rows.values()):
                raise ValueError("ranks are missing")
            return cls(shares, rows, float(values["odds"]), values["about"])
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} holds no measured ranks and confidences: make it with measure=<file>"
            ) from error

    @property
    def source(self) -> str:
        """What was measured, in words."""
        return f"ranks and confidences of {self.about.get('pair', 'a pair')}"


def measured(
    target: CachedModel,
    draft: CachedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new: int,
    eos: Collection[int] = (),
    about: Mapping[str, object] | None = None,
) -> DraftErrorModel:
    """Return what the draft says along the target's greedy texts, one call of each for a text.

    Raises `ValueError` where some rank never occurs: give more prompts.
    """
    found: dict[int, list[list[float]]] = {rank: [] for rank in range(CHOICES + 1)}
    agreed: dict[bool, list[bool]] = {True: [], False: []}
    for prompt in prompts:
        target.empty()
        draft.empty()
        text = decode(target, RootOnly(), prompt, max_new=max_new, eos=eos).new_tokens
        again = repeats([*prompt, *text])[len(prompt) :]
        for (rank, row), known in zip(_along(draft, list(prompt), text), again, strict=True):
            found[rank].append(row)
            agreed[known].append(rank == 1)
    lacking = [rank for rank, rows in found.items() if not rows]
    if lacking or not all(0 < np.mean(own) < 1 for own in agreed.values()):
        raise ValueError(f"too few places (none of rank {lacking}, 0: nowhere): give more prompts")
    misses = [row for rank, rows in found.items() if rank != 1 for row in rows]
    at_repeats, elsewhere = (float(np.mean(agreed[known])) for known in (True, False))
    places = len(misses) + len(found[1])
    facts = {
        **(about or {}),
        "prompts": len(prompts),
        "places": places,
        "agreement": round(len(found[1]) / places, 4),
        "agreement_at_repeats": round(at_repeats, 4),
        "agreement_elsewhere": round(elsewhere, 4),
        "repeats": round(len(agreed[True]) / places, 4),
        "mean_first_where_right": _mean_first(found[1]),
        "mean_first_where_wrong": _mean_first(misses),
    }
    shares = {rank: round(len(found[rank]) / len(misses), 4) for rank in range(2, CHOICES + 1)}
    odds = at_repeats / (1 - at_repeats) * (1 - elsewhere) / elsewhere
    confidence = {rank: _thinned(rows) for rank, rows in found.items()}
    return DraftErrorModel(shares, confidence, round(odds, 4), facts)


def repeats(text: Sequence[int]) -> list[bool]:
    """Say of each token whether it is what followed, the last time, the two tokens before it.

    >>> repeats([1, 2, 3, 1, 2, 3])
    [False, False, False, False, False, True]
    """
    last: dict[tuple[int, int], int] = {}
    found = [False] * min(2, len(text))
    for before, near, token in zip(text, text[1:], text[2:], strict=False):
        found.append(last.get((before, near)) == token)
        last[before, near] = token
    return found


def _along(
    draft: CachedModel, prompt: list[int], text: Sequence[int]
) -> Iterator[tuple[int, list[float]]]:
    """Yield, for each token of a text, its rank among the draft's choices, and how probable these
    are."""
    tree = TokenTree.chain(prompt[-1], text[:-1])
    logits = draft.score(draft.new_sequence(), prompt, tree)
    shares = logits.double().softmax(-1)
    top = shares.topk(CHOICES, dim=-1)
    ids = torch.cat([torch.tensor(argmax(logits, prompt, tree))[:, None], top.indices[:, 1:]], -1)
    for truth, choices, row in zip(text, ids.tolist(), top.values.tolist(), strict=True):
        yield (choices.index(truth) + 1 if truth in choices else NOWHERE), row


def _mean_first(rows: list[list[float]]) -> float:
    return round(float(np.mean([row[0] for row in rows])), 4)


def _thinned(rows: list[list[float]]) -> list[tuple[float, ...]]:
    """Return at most `ROWS` of the rows, spread evenly over them in the order of the first
    probability, so that their distribution stays."""
    ordered = sorted(rows, reverse=True)
    count = min(ROWS, len(ordered))
    picked = (ordered[int((index + 0.5) * len(ordered) / count)] for index in range(count))
    return [tuple(round(share, 4) for share in row) for row in picked]
