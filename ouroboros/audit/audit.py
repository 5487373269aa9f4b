"""Judge completions against standard decoding's: identical, numeric tie, or BUG.

Where two completions part, either the arithmetic could not separate two tokens (in bfloat16 a call
of six rows rounds differently from a call of one) or something is wrong. Two measurements decide.
*Shift*: by how much the logits, computed in float64, would have to move for standard decoding to
choose the other token. *Noise*: by how much the run's own arithmetic moves them, measured on the
same text by transformers' own forward, without any drafter and without this library's cache, masks
or attention. A shift within the noise is a numeric tie; a larger one is a bug.

Invariant: for each tie there is a shift of the logits under which the same rule of choice
(temperature, filters, noise, processors) gives the other token; without one it is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.audit.reference_forward import own_attention, plain_logits, recast
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector
from ouroboros.trace import first_mismatch
from ouroboros.tree import TokenTree

Verdict = Literal[
    "identical", "numeric tie", "BUG", "in law", "reference", "not judged", "not measured"
]
"""The last four: a decoder that preserves the distribution only; standard decoding where it was not
compared with float64 itself; memory or standard decoding's text was missing; the prompt was refused
by every decoder alike."""

WHOLE = 1 << 30
"""The `rows` of a control that scores a whole text in one call."""
LIKELY = 32  # noise is measured on this many of a position's most probable tokens
USUAL = 0.95  # share of the positions whose noise is at most the usual one
HIGHEST = 1e6
RIVALS = 8


@dataclass(frozen=True)
class Finding:
    """The verdict on one completion.

    `index` is the first new token that differs, `expected` and `found` the ids there (None where a
    text has ended). `margin` is the score of `expected` above that of `found` by precision; scores
    are those whose argmax is the choice (when sampling, filtered logits plus noise). `cut` gives,
    by id, how far the float64 logit is above the lowest that the filters keep, negative below it.
    `shift` and `noise` are in logits.
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

    def to_dict(self) -> dict:
        """Return what is known, as audit.jsonl has it."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "", {})}


@dataclass(frozen=True)
class Control:
    """How transformers' own forward, fed `rows` tokens per call, scores standard decoding's text.

    At `differ` of the `positions` positions it chooses another token than the text has. `first` is
    the first such position, or None. `noise` is the 95th percentile over all positions of the
    logits' rounding error.
    """

    rows: int
    positions: int
    differ: int
    first: int | None
    noise: float


class Auditor:
    """Judges completions of one model; noise is measured with calls of each size in `rows`.

    `exact` is the precision taken as exact: float64, or float32 for a quick look at a run in half
    precision. Copies of the model in it and in float32 are made when they are first needed, on
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
        self.target, self.exact, self.rows = target, exact, tuple(rows)
        self.device = target.device if device is None else torch.device(device)
        self._copies: dict[torch.dtype, PreTrainedModel] = {}

    @property
    def ready(self) -> bool:
        """True once a copy was made: there was memory for both."""
        return bool(self._copies)

    def judge(
        self,
        prompt: Sequence[int],
        reference: Sequence[int],
        others: Mapping[str, Sequence[int] | None],
        *,
        choose: TokenSelector,
        controls: bool = False,
    ) -> tuple[dict[str | None, Finding], list[Control]]:
        """Return a finding for each decoder in `others`, under None the reference's, and the
        controls.

        `reference` has standard decoding's new tokens, `others` those of each decoder (None where
        it has no completion). The controls are measured where a completion differs, or always with
        `controls`; then the finding None compares standard decoding's own text with float64.
        A completion that parts at a tie is compared with float64 from there on.
        """
        parted = {name: first_mismatch(reference, new or ()) for name, new in others.items()}
        equal = all(index is None for index in parted.values()) and None not in others.values()
        if equal and not controls:
            return {name: Finding("identical") for name in parted}, []
        text = _ScoredText(self, prompt, reference, choose)
        measured, noises = [], []
        for size in self.rows:
            with own_attention(self.target.model):
                logits = plain_logits(self.target.model, prompt, reference, rows=size)
            logits = logits.to(text.exact.device)
            chosen = text.choices(logits if self.target.dtype == torch.float64 else logits.float())
            wrong = [
                i for i, pair in enumerate(zip(chosen, reference, strict=True)) if len({*pair}) > 1
            ]
            noises.append(logit_noise(logits, text.exact))
            first, usual = next(iter(wrong), None), usual_noise(noises[-1])
            measured.append(Control(size, len(chosen), len(wrong), first, usual))
        noise = torch.stack(noises).amax(0)
        findings: dict[str | None, Finding] = {
            name: self._finding(text, noise, parted[name], new) for name, new in others.items()
        }
        return findings | {None: text.worst(noise)}, measured

    def score(self, dtype: torch.dtype, prompt: Sequence[int], new: Sequence[int]) -> torch.Tensor:
        """Return the float64 logits [len(new), vocab] of a text, by a copy in `dtype`."""
        if dtype not in self._copies:
            self._copies[dtype] = recast(self.target.model, dtype, self.device)
        return plain_logits(self._copies[dtype], prompt, new, rows=WHOLE)

    def _finding(
        self, text: _ScoredText, noise: torch.Tensor, index: int | None, new: Sequence[int] | None
    ) -> Finding:
        """Judge one completion that parts from the reference at `index`."""
        if new is None:
            return Finding("BUG", "missing: there is no such completion")
        if index is None:
            return Finding("identical")
        if index >= min(len(text.new), len(new)):
            what, more = ("goes on beyond", new) if index < len(new) else ("ends before", text.new)
            ids = (more[index], None) if more is text.new else (None, more[index])
            return Finding("BUG", f"truncated: it {what} plain decoding's end", index, *ids)
        if not all(0 <= token < text.exact.shape[-1] for token in new):
            reason = "it has ids beyond the vocabulary"
            return Finding("BUG", reason, index, text.new[index], new[index])
        first = text.tie_or_bug(noise, index, text.new[index], new[index])
        rest = _ScoredText(self, text.prompt, new, text.choose).worst(noise)
        return rest if (rest.verdict, first.verdict) == ("BUG", "numeric tie") else first


def logit_noise(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return by how much two scorings of one text, [positions, vocab], differ at each position.

    The largest difference over a position's most probable tokens; an offset common to the row is
    left out, since it changes no choice.
    """
    likely = exact.topk(min(LIKELY, exact.shape[-1]), dim=-1).indices
    moved = logits.gather(-1, likely) - exact.gather(-1, likely)
    return (moved - moved.median(dim=-1, keepdim=True).values).abs().amax(dim=-1).cpu()


def usual_noise(noise: torch.Tensor) -> float:
    """Return the noise that 95 % of the positions stay below."""
    return float(noise.quantile(USUAL)) if len(noise) else 0.0


@dataclass(frozen=True)
class _ScoredText:
    """A prompt and new tokens, with their exact logits and those in float32."""

    auditor: Auditor
    prompt: Sequence[int]
    new: Sequence[int]
    choose: TokenSelector

    @cached_property
    def exact(self) -> torch.Tensor:
        return self.auditor.score(self.auditor.exact, self.prompt, self.new)

    @cached_property
    def single(self) -> torch.Tensor:
        return self.auditor.score(torch.float32, self.prompt, self.new)

    def choices(self, logits: torch.Tensor) -> list[int]:
        """Return the choice at each position; `logits` has a row for each."""
        if not len(self.new):
            return []
        tree = TokenTree.chain(self.prompt[-1], self.new[:-1])
        return self.choose.scores(logits, self.prompt, tree).argmax(-1).tolist()

    def scores(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Return the scores [vocab] of one row of logits, that after `index` new tokens."""
        tokens = [*self.prompt, *self.new[:index]]
        return self.choose.scores(logits[None], tokens, TokenTree((tokens[-1],), (-1,)))[0]

    def worst(self, noise: torch.Tensor) -> Finding:
        """Judge the text by itself: each token must be float64's choice, up to the noise."""
        worst = Finding("identical")
        pairs = zip(self.choices(self.exact), self.new, strict=True)
        for index, (choice, token) in enumerate(pairs):
            if choice != token:
                found = self.tie_or_bug(noise, index, choice, token)
                worst = max(worst, found, key=lambda f: (f.verdict == "BUG", f.shift or 0.0))
        return worst

    def tie_or_bug(self, noise: torch.Tensor, index: int, expected: int, found: int) -> Finding:
        """Judge one position at which another token was chosen: numeric tie or BUG.

        The noise that is allowed for is the position's own or the usual noise, whichever is larger.
        """
        exact, both = self.exact[index], (expected, found)
        shift = max(
            min_logit_perturbation(exact, token, lambda moved: self.scores(moved, index))
            for token in both
        )
        allowed = max([*noise[index : index + 1].tolist(), usual_noise(noise)])
        margin = {}
        for dtype, logits in ((torch.float32, self.single), (self.auditor.exact, self.exact)):
            scores = self.scores(logits[index], index)
            margin[str(dtype).removeprefix("torch.")] = float(scores[expected] - scores[found])
        kept = torch.isfinite(self.scores(exact, index))
        cut = {} if kept.all() else {t: float(exact[t] - exact[kept].min()) for t in both}
        verdict: Verdict = "numeric tie" if shift <= allowed else "BUG"
        side = "within" if shift <= allowed else "beyond"
        reason = f"the other token is a shift of {shift:.2g} away, {side} the noise {allowed:.2g}"
        return Finding(verdict, reason, index, expected, found, margin, cut, shift, allowed)


def well_ended(
    new: Sequence[int], *, eos: Collection[int], max_new: int, room: int, stopped: bool
) -> bool:
    """Return whether a completion of `new` tokens ends by a rule: at the first of `eos`, at
    `max_new`, where the context's `room` ends, or (`stopped`) at a stop string."""
    if any(token in eos for token in new[:-1]) or len(new) > min(max_new, room):
        return False
    return stopped or len(new) == min(max_new, room) or (bool(new) and new[-1] in eos)


def min_logit_perturbation(
    logits: torch.Tensor, token: int, scores: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return the smallest perturbation of `logits` [vocab] found under which `token` is chosen.

    The choice is the argmax of `scores(perturbed logits)`; each logit moves by at most the returned
    size, 0.0 if `token` is the choice already. An upper bound, since a few directions are tried:
    the token alone raised, and the moves by which a filter (top-k, top-p, min-p) takes it in or
    leaves a rival out. Exact to one part in a thousand for the best direction.
    """
    winner = int(scores(logits).argmax())
    if winner == token:
        return 0.0
    best = HIGHEST
    for direction in _directions(logits, token, winner):

        def wins(size: float, direction: torch.Tensor = direction) -> bool:
            return int(scores(logits + size * direction).argmax()) == token

        low, high = 1e-12, HIGHEST
        if wins(high):
            while high > 1.001 * low:
                middle = (low * high) ** 0.5
                low, high = (low, middle) if wins(middle) else (middle, high)
            best = min(best, high)
    return best


def _directions(logits: torch.Tensor, token: int, winner: int) -> Iterator[torch.Tensor]:
    """Yield directions, entries of size 1, that favour a token against the winner and others."""
    up = torch.full_like(logits, -1.0)
    up[token] = 1.0
    yield up
    yield torch.where(logits > logits[token], -1.0, 1.0).to(logits)
    likely = logits.topk(min(RIVALS, len(logits))).indices.tolist()
    above = torch.where(logits >= logits[token], logits, torch.inf)
    nearest = above.topk(min(RIVALS, len(logits)), largest=False).indices.tolist()
    for rival in dict.fromkeys([winner, *likely, *nearest]):
        if rival == token:
            continue
        alone = torch.ones_like(logits)
        alone[rival] = -1.0
        yield alone
        lowered = torch.where(logits > logits[rival], 1.0, -1.0).to(logits)
        lowered[token] = 1.0
        yield lowered
