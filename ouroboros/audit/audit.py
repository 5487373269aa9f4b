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
from functools import cached_property
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.audit.reference_forward import own_attention, plain_logits, recast
from ouroboros.audit.rounding import Noise
from ouroboros.audit.tie_distance import min_logit_perturbation
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector
from ouroboros.trace import first_mismatch
from ouroboros.tree import TokenTree

Verdict = Literal[
    "identical", "numeric tie", "BUG", "in law", "reference", "not judged", "not measured"
]
"""The last three are said of a decoder that promises no equal tokens, of plain decoding where it
was not held against float64 itself, and where memory or plain decoding's text was missing."""

WHOLE = 1 << 30


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
    is the first of them (None: none). `noise` is what most positions stay below (`Noise.usual`).
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
    choose: TokenSelector


class Auditor:
    """Judges completions of one model. `rows` are the sizes of call at which noise is measured.

    `exact` is the precision that counts as exact: float64, or float32 for a quick look at a run in
    half precision. Copies of the model in it and in float32 are made when they are first needed, on
    `device` (the model's own by default): about 12 bytes for each weight with float64.
    """

    def __init__(
        self,
        target: CachedModel,
        *,
        rows: Sequence[int] = (1, 8, WHOLE),
        exact: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.target = target
        self.exact = exact
        self.rows = tuple(rows)
        self.device = target.device if device is None else torch.device(device)
        self._copies: dict[torch.dtype, PreTrainedModel] = {}

    @property
    def ready(self) -> bool:
        """True once a copy is made: the memory for both was there."""
        return bool(self._copies)

    def judge(
        self, case: Case, *, controls: bool = False
    ) -> tuple[dict[str, Finding], list[Control]]:
        """Return a finding for each decoder, and the controls.

        The controls are measured where a completion differs, or always with `controls`; then there
        is a finding named "reference" too, for plain decoding's own text against float64. A
        completion that parts at a tie goes on by itself: the rest of it is held against float64.
        """
        parted = {
            name: first_mismatch(case.reference, new or ()) for name, new in case.others.items()
        }
        equal = all(index is None for index in parted.values())
        if equal and None not in case.others.values() and not controls:
            return {name: Finding("identical") for name in parted}, []
        text = _Text(self, case.prompt, case.reference, case.choose)
        measured = [self._control(rows, text) for rows in self.rows]
        noise = Noise(torch.stack([noise.by_position for _, noise in measured]).amax(0))
        findings = {
            name: self._finding(text, noise, parted[name], new) for name, new in case.others.items()
        }
        findings["reference"] = text.worst(noise)
        return findings, [control for control, _ in measured]

    def scored(self, dtype: torch.dtype, prompt: Sequence[int], new: Sequence[int]) -> torch.Tensor:
        """Return the float64 logits [len(new), vocab] of a text, by a copy in `dtype`."""
        if dtype not in self._copies:
            self._copies[dtype] = recast(self.target.model, dtype, self.device)
        return plain_logits(self._copies[dtype], prompt, new, rows=WHOLE)

    def _finding(
        self, text: _Text, noise: Noise, index: int | None, new: Sequence[int] | None
    ) -> Finding:
        """Judge one completion that parts from the reference at `index`."""
        if new is None:
            return Finding("BUG", "missing: there is no such completion")
        if index is None:
            return Finding("identical")
        expected = text.new[index] if index < len(text.new) else None
        found = new[index] if index < len(new) else None
        if expected is None or found is None:
            what = "goes on beyond" if expected is None else "ends before"
            reason = f"truncated: it {what} plain decoding's end"
            return Finding("BUG", reason, index, expected, found)
        if not all(0 <= token < text.exact.shape[-1] for token in new):
            return Finding("BUG", "it has ids beyond the vocabulary", index, expected, found)
        first_mismatch = text.tie_or_bug(noise, index, expected, found)
        own = _Text(self, text.prompt, new, text.choose).worst(noise)
        return (
            own
            if (own.verdict, first_mismatch.verdict) == ("BUG", "numeric tie")
            else first_mismatch
        )

    def _control(self, rows: int, text: _Text) -> tuple[Control, Noise]:
        """Score a text in the run's own precision and compare with float64."""
        with own_attention(self.target.model):
            found = plain_logits(self.target.model, text.prompt, text.new, rows=rows)
        found = found.to(text.exact.device)
        noise = Noise.between(found, text.exact)
        chosen = text.choices(found if self.target.dtype == torch.float64 else found.float())
        pairs = enumerate(zip(chosen, text.new, strict=True))
        wrong = [index for index, (ours, plain) in pairs if ours != plain]
        first = wrong[0] if wrong else None
        return Control(rows, len(chosen), len(wrong), first, noise.usual), noise


@dataclass(frozen=True)
class _Text:
    """A prompt and new tokens, with their exact logits and those in float32."""

    auditor: Auditor
    prompt: Sequence[int]
    new: Sequence[int]
    choose: TokenSelector

    @cached_property
    def exact(self) -> torch.Tensor:
        return self.auditor.scored(self.auditor.exact, self.prompt, self.new)

    @cached_property
    def single(self) -> torch.Tensor:
        return self.auditor.scored(torch.float32, self.prompt, self.new)

    def choices(self, logits: torch.Tensor) -> list[int]:
        """Return the choice at each position; `logits` has a row for each."""
        if not len(self.new):
            return []
        tree = TokenTree.chain(self.prompt[-1], self.new[:-1])
        return self.choose.scores(logits, self.prompt, tree).argmax(-1).tolist()

    def scores(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Return the scores of one row of logits, that after `index` new tokens, [vocab]."""
        tokens = [*self.prompt, *self.new[:index]]
        return self.choose.scores(logits[None], tokens, TokenTree((tokens[-1],), (-1,)))[0]

    def worst(self, noise: Noise) -> Finding:
        """Judge the text by itself: each token must be float64's choice, up to the noise."""
        worst = Finding("identical")
        pairs = zip(self.choices(self.exact), self.new, strict=True)
        for index, (exact, token) in enumerate(pairs):
            if exact != token:
                found = self.tie_or_bug(noise, index, exact, token)
                worst = max(worst, found, key=lambda f: (f.verdict == "BUG", f.shift or 0.0))
        return worst

    def tie_or_bug(self, noise: Noise, index: int, expected: int, found: int) -> Finding:
        """Judge one position at which another token was chosen."""
        shift = max(
            min_logit_perturbation(
                self.exact[index], token, lambda moved: self.scores(moved, index)
            )
            for token in (expected, found)
        )
        allowed = noise.at(index)
        verdict: Verdict = "numeric tie" if shift <= allowed else "BUG"
        within = "within" if verdict == "numeric tie" else "beyond"
        return Finding(
            verdict,
            f"the other token is a shift of {shift:.2g} away, {within} the noise {allowed:.2g}",
            index,
            expected,
            found,
            {
                name: self._margin(logits, index, expected, found)
                for name, logits in (("float32", self.single), (self._precision, self.exact))
            },
            self._cuts(index, (expected, found)),
            shift,
            allowed,
        )

    @property
    def _precision(self) -> str:
        return str(self.auditor.exact).removeprefix("torch.")

    def _margin(self, logits: torch.Tensor, index: int, expected: int, found: int) -> float:
        scores = self.scores(logits[index], index)
        return float(scores[expected] - scores[found])

    def _cuts(self, index: int, tokens: Collection[int]) -> dict[int, float]:
        """Return how far above the lowest kept logit each token lies; {} where nothing is cut."""
        logits = self.exact[index]
        kept = torch.isfinite(self.scores(logits, index))
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
