"""Is it lossless? A completion against plain decoding's, with a verdict.

Where two completions part, either the arithmetic could not tell two tokens apart (in bfloat16 a
call of six rows rounds differently from a call of one) or something is wrong. Two measurements
decide. *Shift*: by how much the logits, computed in float64, would have to move for plain decoding
to choose the other token. *Noise*: by how much the run's own arithmetic moves them, measured on the
same text by transformers' own forward, without any drafter and without this library's cache, masks
or attention. A shift within the noise is a numeric tie; a larger one is a bug.

Invariant: a tie is always witnessed by a shift of the logits under which the very rule of choice
(temperature, cuts, noise, processors) gives the other token; what has no witness is a bug.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.choose import Choose
from ouroboros.model import CachedModel
from ouroboros.plainly import own_attention, plain_logits, recast
from ouroboros.shift import least_shift
from ouroboros.tree import TokenTree

Verdict = Literal["identical", "numeric tie", "BUG", "in law", "not judged"]
"""The last two are said of a decoder that promises no equal tokens, and where memory is short."""

WHOLE = 1 << 30
LIKELY = 32  # noise is measured on so many of a position's likeliest tokens


@dataclass(frozen=True)
class Finding:
    """What became of one completion.

    `index` is the first new token that differs, `expected` and `found` the ids there (None where a
    text has ended). `margin` is the score of `expected` above that of `found` by precision, the
    scores being those whose argmax is the choice (when sampling, warped logits plus noise); `cut`
    says, by id, how far the float64 logit lies above the lowest that the cuts (top-k, top-p, min-p)
    keep, negative below it. `shift` and `noise` are in logits.
    """

    verdict: Verdict
    reason: str = ""
    index: int | None = None
    expected: int | None = None
    found: int | None = None
    margin: Mapping[str, float] = field(default_factory=dict)
    cut: Mapping[int, float] = field(default_factory=dict)
    shift: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Control:
    """Plain decoding's text scored by transformers' own forward, `rows` tokens a call, no drafter.

    `differ` counts the positions, out of `positions`, whose choice is not the text's token; `first`
    is the first of them (None: none). `noise` is the largest difference to float64, in logits, over
    the likeliest tokens of every position.
    """

    rows: int
    positions: int
    differ: int
    first: int | None
    noise: float


@dataclass(frozen=True)
class Case:
    """One prompt: plain decoding's new tokens (`reference`), and those of other decoders (None
    where a decoder has none)."""

    prompt: Sequence[int]
    reference: Sequence[int]
    others: Mapping[str, Sequence[int] | None]
    choose: Choose

    def choices(self, logits: torch.Tensor) -> list[int]:
        """Return the choice at each position of the reference; `logits` has a row for each, and
        one more."""
        tree = TokenTree.chain(self.prompt[-1], self.reference[:-1])
        scores = self.choose.scores(logits[: len(tree)], self.prompt, tree)
        return scores.argmax(-1).tolist()[: len(self.reference)]

    def scores(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Return the scores of one row of logits, that after `index` new tokens, [vocab]."""
        tokens = [*self.prompt, *self.reference[:index]]
        return self.choose.scores(logits[None], tokens, TokenTree((tokens[-1],), (-1,)))[0]


class Auditor:
    """Judges completions of one model. `rows` are the sizes of call at which noise is measured.

    Copies of the model in float32 and float64 are made when they are first needed, on `device`
    (the model's own by default): about 12 bytes for each weight.
    """

    def __init__(
        self,
        target: CachedModel,
        *,
        rows: Sequence[int] = (1, 8, WHOLE),
        device: torch.device | str | None = None,
    ) -> None:
        self.target = target
        self.rows = tuple(rows)
        self.device = target.device if device is None else torch.device(device)
        self._copies: dict[torch.dtype, PreTrainedModel] = {}

    def judge(
        self, case: Case, *, controls: bool = False
    ) -> tuple[dict[str, Finding], list[Control]]:
        """Return a finding for each decoder, and the controls.

        The controls are measured where a completion differs, or always with `controls`; then there
        is a finding named "reference" too, for plain decoding's own text against float64.
        """
        parted = {name: _parting(case.reference, new) for name, new in case.others.items()}
        equal = all(index is None for index in parted.values())
        if equal and None not in case.others.values() and not controls:
            return {name: Finding("identical") for name in parted}, []
        exact = self._scored(torch.float64, case)
        measured = [self._control(rows, case, exact) for rows in self.rows]
        noise = max(control.noise for control in measured)
        judge = _Judge(case, exact, self._scored(torch.float32, case), noise)
        findings = {name: judge.finding(parted[name], case.others[name]) for name in parted}
        return {**findings, "reference": judge.reference()}, measured

    def _scored(self, dtype: torch.dtype, case: Case) -> torch.Tensor:
        """Return float64 logits [len(reference) + 1, vocab] of every position, by a copy."""
        if dtype not in self._copies:
            self._copies[dtype] = recast(self.target.model, dtype, self.device)
        return plain_logits(self._copies[dtype], case.prompt, case.reference, rows=WHOLE)

    def _control(self, rows: int, case: Case, exact: torch.Tensor) -> Control:
        """Score the reference in the run's own precision and compare with float64."""
        with own_attention(self.target.model):
            found = plain_logits(self.target.model, case.prompt, case.reference, rows=rows)
        found = found.to(exact.device)
        likely = exact.topk(min(LIKELY, exact.shape[-1]), dim=-1).indices
        noise = (found.gather(-1, likely) - exact.gather(-1, likely)).abs().max().item()
        chosen = case.choices(found if self.target.dtype == torch.float64 else found.float())
        pairs = enumerate(zip(chosen, case.reference, strict=True))
        wrong = [index for index, (ours, plain) in pairs if ours != plain]
        return Control(rows, len(chosen), len(wrong), wrong[0] if wrong else None, noise)


@dataclass(frozen=True)
class _Judge:
    """One case with its float64 and float32 logits and its noise."""

    case: Case
    exact: torch.Tensor
    single: torch.Tensor
    noise: float

    def finding(self, index: int | None, new: Sequence[int] | None) -> Finding:
        """Judge one completion that parts from the reference at `index`."""
        if new is None:
            return Finding("BUG", "missing: there is no such completion")
        if index is None:
            return Finding("identical")
        reference = self.case.reference
        expected = reference[index] if index < len(reference) else None
        found = new[index] if index < len(new) else None
        if expected is None or found is None:
            what = "goes on beyond" if expected is None else "ends before"
            return Finding(
                "BUG", f"truncated: it {what} plain decoding's end", index, expected, found
            )
        return self._tie_or_bug(index, expected, found)

    def reference(self) -> Finding:
        """Judge plain decoding's own text: each token must be float64's, up to the noise."""
        chosen = self.case.choices(self.exact)
        worst = Finding("identical")
        for index, (exact, token) in enumerate(zip(chosen, self.case.reference, strict=True)):
            if exact != token:
                found = self._tie_or_bug(index, exact, token)
                worst = max(worst, found, key=lambda f: (f.verdict == "BUG", f.shift or 0.0))
        return worst

    def _tie_or_bug(self, index: int, expected: int, found: int) -> Finding:
        shift = max(
            least_shift(self.exact[index], token, lambda moved: self.case.scores(moved, index))
            for token in (expected, found)
        )
        verdict: Verdict = "numeric tie" if shift <= self.noise else "BUG"
        within = "within" if verdict == "numeric tie" else "beyond"
        return Finding(
            verdict,
            f"the other token is a shift of {shift:.2g} away, {within} the noise {self.noise:.2g}",
            index,
            expected,
            found,
            {
                name: self._margin(logits, index, expected, found)
                for name, logits in (("float32", self.single), ("float64", self.exact))
            },
            self._cuts(index, (expected, found)),
            shift,
            self.noise,
        )

    def _margin(self, logits: torch.Tensor, index: int, expected: int, found: int) -> float:
        scores = self.case.scores(logits[index], index)
        return float(scores[expected] - scores[found])

    def _cuts(self, index: int, tokens: Collection[int]) -> dict[int, float]:
        """Return how far above the lowest kept logit each token lies; {} where nothing is cut."""
        logits = self.exact[index]
        kept = torch.isfinite(self.case.scores(logits, index))
        if bool(kept.all()):
            return {}
        return {token: float(logits[token] - logits[kept].min()) for token in tokens}


def well_ended(
    new: Sequence[int], *, eos: Collection[int], max_new: int, room: int, stopped: bool
) -> bool:
    """True if a completion of `new` tokens ends where the rules say: at the first of `eos`, at
    `max_new`, where the context's `room` ends, or (`stopped`) at a stop string."""
    if any(token in eos for token in new[:-1]) or len(new) > min(max_new, room):
        return False
    return stopped or len(new) == min(max_new, room) or (bool(new) and new[-1] in eos)


def _parting(reference: Sequence[int], new: Sequence[int] | None) -> int | None:
    """Return the first index at which two texts differ, an end included; None if they are equal."""
    new = () if new is None else new
    for index, (a, b) in enumerate(zip(reference, new, strict=False)):
        if a != b:
            return index
    return None if len(reference) == len(new) else min(len(reference), len(new))
