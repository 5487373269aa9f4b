"""How a draft model errs and how confident it is, measured on a pair, to simulate drafts by.

Everything depends on the rank of the truth among the draft's choices. How often it is first (the
agreement) is an option of the simulation. The rest is measured: how much more often it is first
where the text repeats itself (a draft is right where a look-up is right too, so the two are worth
less together than independent ones), how often the truth is second to fifth where it is not first,
and how probable the draft takes its five best. Invariant: a simulation invents no figure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ouroboros.decode import RootOnly, decode
from ouroboros.engine.model import CachedModel
from ouroboros.select import argmax
from ouroboros.tree import TokenTree

CHOICES = 5
NOWHERE = 0  # the rank of a truth that is none of the choices
ROWS = 48  # confidence rows kept of each rank
SHIPPED = Path(__file__).with_name("draft_errors.json")


@dataclass(frozen=True)
class DraftErrorModel:
    """`shares[rank]`: among the misses, how often the truth is the draft's choice of that rank (2
    to 5); the rest, up to 1, are truths that are none of the choices.

    `confidence[rank]`: rows of the five best choices' probabilities, descending, where the truth
    has that rank (`NOWHERE` too). `odds`: the odds of agreement where the text repeats itself
    (`repeats`) over those elsewhere. `about` describes the pair in plain values.
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
        """Read a file of `save`. Raises `ValueError` for anything else."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            shares = {int(rank): float(share) for rank, share in values["shares"].items()}
            rows = {int(k): [tuple(row) for row in own] for k, own in values["confidence"].items()}
            return cls(shares, rows, float(values["odds"]), values["about"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} holds no measured draft errors: make it with DraftErrorModel.measure"
            ) from error

    @property
    def source(self) -> str:
        """What was measured, in words."""
        return f"ranks and confidences of {self.about.get('pair', 'a pair')}"

    @classmethod
    def measure(
        cls,
        target: CachedModel,
        draft: CachedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new: int,
        eos: Collection[int] = (),
        about: Mapping[str, object] | None = None,
    ) -> DraftErrorModel:
        """Measure the draft's choices along the target's greedy texts, one draft call for a text.

        Raises `ValueError` if some rank never occurs: give more prompts.
        """
        rows: dict[int, list[list[float]]] = {rank: [] for rank in range(CHOICES + 1)}
        agreed: dict[bool, list[bool]] = {True: [], False: []}
        for prompt in map(list, prompts):
            target.empty()
            draft.empty()
            text = decode(target, RootOnly(), prompt, max_new=max_new, eos=eos).new_tokens
            tree = TokenTree.chain(prompt[-1], text[:-1])
            logits = draft.score(draft.new_sequence(), prompt, tree)
            top = logits.double().softmax(-1).topk(CHOICES, dim=-1)
            ids, shares = top.indices.tolist(), top.values.tolist()
            first = argmax(logits, prompt, tree)
            again = repeats([*prompt, *text])[len(prompt) :]
            for at, truth in enumerate(text):
                choices = [first[at], *ids[at][1:]]
                rank = choices.index(truth) + 1 if truth in choices else NOWHERE
                rows[rank].append(shares[at])
                agreed[again[at]].append(rank == 1)
        lacking = [rank for rank, own in rows.items() if not own]
        if lacking or not all(0 < np.mean(own) < 1 for own in agreed.values()):
            raise ValueError(
                f"too few positions (none of rank {lacking}, 0: none of the choices): give more "
                "prompts"
            )
        misses = [row for rank, own in rows.items() if rank != 1 for row in own]
        at_repeats, elsewhere = float(np.mean(agreed[True])), float(np.mean(agreed[False]))
        count = len(misses) + len(rows[1])
        found = {
            **(about or {}),
            "prompts": len(prompts),
            "places": count,
            "agreement": round(len(rows[1]) / count, 4),
            "agreement_at_repeats": round(at_repeats, 4),
            "agreement_elsewhere": round(elsewhere, 4),
            "repeats": round(len(agreed[True]) / count, 4),
            "mean_first_where_right": round(float(np.mean([row[0] for row in rows[1]])), 4),
            "mean_first_where_wrong": round(float(np.mean([row[0] for row in misses])), 4),
        }
        ranks = {rank: round(len(rows[rank]) / len(misses), 4) for rank in range(2, CHOICES + 1)}
        odds = at_repeats / (1 - at_repeats) * (1 - elsewhere) / elsewhere
        return cls(ranks, {k: _thinned(own) for k, own in rows.items()}, round(odds, 4), found)


def repeats(text: Sequence[int]) -> list[bool]:
    """Return for each token whether it followed the two tokens before it the last time, too.

    >>> repeats([1, 2, 3, 1, 2, 3])
    [False, False, False, False, False, True]
    """
    last: dict[tuple[int, int], int] = {}
    found = [False] * min(2, len(text))
    for before, near, token in zip(text, text[1:], text[2:], strict=False):
        found.append(last.get((before, near)) == token)
        last[before, near] = token
    return found


def _thinned(rows: list[list[float]]) -> list[tuple[float, ...]]:
    """Return at most `ROWS` rows, evenly spread by first probability: the same distribution."""
    ordered = sorted(rows, reverse=True)
    count = min(ROWS, len(ordered))
    picked = (ordered[int((index + 0.5) * len(ordered) / count)] for index in range(count))
    return [tuple(round(share, 4) for share in row) for row in picked]
