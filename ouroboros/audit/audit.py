"""Compare completions with standard decoding: identical, numeric tie, or BUG.

If two completions first differ at some token, either rounding decided between two tokens (in
bfloat16 a call of six rows rounds differently from a call of one), or there is a bug. Two
measurements distinguish these cases. *Shift*: how far the float64 logits would have to move for
standard decoding to choose the other token. *Noise*: how far rounding in the run's dtype moves the
logits, measured on the same text with transformers' own forward pass, without a drafter and without
this library's cache, masks or attention. If the shift is at most the noise, the difference is a
numeric tie; otherwise it is a bug.

Invariant: for every tie there is a shift of the logits with which the same selection (temperature,
filters, noise, processors) chooses the other token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

import torch
from transformers import PreTrainedModel

from ouroboros.audit.reference_forward import own_attention, plain_logits, recast
from ouroboros.core.select import TokenSelector
from ouroboros.core.trace import first_mismatch
from ouroboros.core.tree import TokenTree
from ouroboros.engine.model import CachedModel

Verdict = Literal[
    "identical", "numeric tie", "BUG", "in law", "reference", "not judged", "not measured"
]
"""Not compared: "in law": the decoder preserves only the distribution; "reference": standard
decoding's completion itself, without an audit against float64; "not judged": too little memory, or
no completion of standard decoding; "not measured": every decoder refused the prompt."""

WHOLE = 1 << 30
"""The `rows` of a control that scores a whole text in one call."""
LIKELY = 32  # noise is measured on this many tokens per position: the most probable ones
USUAL = 0.95  # quantile of the noise over positions
HIGHEST = 1e6  # largest shift tried, in logits
RIVALS = 8  # competing tokens tried: this many most probable and this many nearest


@dataclass(frozen=True)
class Finding:
    """The verdict on one completion.

    - `index`: the first new token that differs; `expected`, `found`: the two ids there (None: the
      completion has ended)
    - `margin`: the float64 score of `expected` minus that of `found`. The token with the highest
      score is chosen; when sampling, scores are filtered logits plus noise
    - `shift`, `noise`: differences of logits, defined in the module's docstring
    """

    verdict: Verdict
    reason: str = ""
    index: int | None = None
    expected: int | None = None
    found: int | None = None
    margin: float | None = None
    shift: float | None = None
    noise: float | None = None

    def to_dict(self) -> dict:
        """Return the non-empty fields, in the form of audit.jsonl."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True)
class Control:
    """The result of scoring standard decoding's completion by transformers' own forward pass, with
    `rows` tokens per call.

    The forward pass chooses another token at `differ` of `positions` positions. `noise` is the 95th
    percentile of the logits' rounding error over positions.
    """

    rows: int
    positions: int
    differ: int
    noise: float


class Auditor:
    """Audits completions of one model. Rounding noise is measured with calls of each number of
    tokens in `rows`.

    `exact` is the reference precision: float64, or float32 for a quick audit of a half-precision
    run. A copy of the model in this precision is created on first use; in float64 it takes 8 bytes
    per weight.
    """

    def __init__(
        self,
        target: CachedModel,
        *,
        rows: Sequence[int] = (1, 8, WHOLE),
        exact: torch.dtype = torch.float64,
    ) -> None:
        self.target, self.exact, self.rows = target, exact, tuple(rows)
        self._copy: PreTrainedModel | None = None

    def judge(
        self,
        prompt: Sequence[int],
        reference: Sequence[int],
        others: Mapping[str, Sequence[int] | None],
        *,
        choose: TokenSelector,
        controls: bool = False,
    ) -> tuple[dict[str | None, Finding], list[Control]]:
        """Return a `Finding` for each decoder, and a `Control` for each number in `rows`.

        `reference` has standard decoding's new tokens, `others` those of each decoder (None: no
        completion). If all are equal and `controls` is false, nothing is measured: there are no
        controls. Otherwise the reference itself is compared with calls in `exact` precision; its
        finding has the key None. A completion that differs by a tie is compared with such
        calls too; if they show a BUG, this is its finding.
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
            differ = sum(ours != own for ours, own in zip(chosen, reference, strict=True))
            noises.append(logit_noise(logits, text.exact))
            usual = float(noises[-1].quantile(USUAL)) if len(chosen) else 0.0
            measured.append(Control(size, len(chosen), differ, usual))
        noise = max(torch.cat(noises).tolist(), default=0.0)
        findings: dict[str | None, Finding] = {
            name: self._finding(text, noise, parted[name], new) for name, new in others.items()
        }
        return findings | {None: text.worst(noise)}, measured

    def score(self, prompt: Sequence[int], new: Sequence[int]) -> torch.Tensor:
        """Return the exact logits of each new token, [len(new), vocab] float64."""
        if self._copy is None:
            self._copy = recast(self.target.model, self.exact, self.target.device)
        return plain_logits(self._copy, prompt, new, rows=WHOLE)

    def _finding(
        self, text: _ScoredText, noise: float, index: int | None, new: Sequence[int] | None
    ) -> Finding:
        """Return the finding for a completion that first differs from the reference at `index`."""
        if new is None:
            return Finding("BUG", "missing: the decoder has no completion")
        if index is None:
            return Finding("identical")
        if index == len(new):
            reason = "truncated: it ends before the end of greedy's"
            return Finding("BUG", reason, index, text.new[index])
        if index == len(text.new):
            return Finding("BUG", "it goes on after the end of greedy's", index, None, new[index])
        if not all(0 <= token < text.exact.shape[-1] for token in new):
            reason = "it has ids beyond the vocabulary"
            return Finding("BUG", reason, index, text.new[index], new[index])
        first = text.tie_or_bug(noise, index, text.new[index], new[index])
        rest = _ScoredText(self, text.prompt, new, text.choose).worst(noise)
        return rest if (rest.verdict, first.verdict) == ("BUG", "numeric tie") else first


def logit_noise(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the rounding error of logits [positions, vocab] at each position, [positions].

    This is the largest difference from `exact` over a position's most probable tokens, minus their
    common offset (the median), which does not affect selection.
    """
    likely = exact.topk(min(LIKELY, exact.shape[-1]), dim=-1).indices
    moved = logits.gather(-1, likely) - exact.gather(-1, likely)
    return (moved - moved.median(dim=-1, keepdim=True).values).abs().amax(dim=-1).cpu()


@dataclass(frozen=True)
class _ScoredText:
    """A prompt and new tokens, with their logits in the exact precision."""

    auditor: Auditor
    prompt: Sequence[int]
    new: Sequence[int]
    choose: TokenSelector

    @cached_property
    def exact(self) -> torch.Tensor:
        return self.auditor.score(self.prompt, self.new)

    def choices(self, logits: torch.Tensor) -> list[int]:
        """Return the token that `choose` selects at each position (a row of `logits`)."""
        if not len(self.new):
            return []
        tree = TokenTree.chain(self.prompt[-1], self.new[:-1])
        return self.choose.scores(logits, self.prompt, tree).argmax(-1).tolist()

    def scores(self, logits: torch.Tensor, index: int) -> torch.Tensor:
        """Return the scores [vocab] of `choose` for `logits` [vocab] after `index` new tokens."""
        tokens = [*self.prompt, *self.new[:index]]
        return self.choose.scores(logits[None], tokens, TokenTree((tokens[-1],), (-1,)))[0]

    def worst(self, noise: float) -> Finding:
        """Compare every new token with the choice of the exact logits; return the worst finding: a
        BUG before a tie, then the largest shift."""
        worst = Finding("identical")
        pairs = zip(self.choices(self.exact), self.new, strict=True)
        for index, (choice, token) in enumerate(pairs):
            if choice != token:
                finding = self.tie_or_bug(noise, index, choice, token)
                worst = max(worst, finding, key=lambda f: (f.verdict == "BUG", f.shift or 0.0))
        return worst

    def tie_or_bug(self, noise: float, index: int, expected: int, found: int) -> Finding:
        """Return the finding, numeric tie or BUG, for the position `index`, where `found` was
        chosen instead of `expected`. The shift is the larger of the two that make `expected` and
        `found` the choice. It is a tie if the shift is at most `noise`, the largest in the text: a
        smaller quantile is often exceeded by the error of the completion's own calls."""
        exact, both = self.exact[index], (expected, found)
        shift = max(
            min_logit_perturbation(exact, token, lambda moved: self.scores(moved, index))
            for token in both
        )
        scores = self.scores(exact, index)
        margin = float(scores[expected] - scores[found])
        verdict: Verdict = "numeric tie" if shift <= noise else "BUG"
        side = "within" if shift <= noise else "beyond"
        reason = f"the other token is a shift of {shift:.2g} away, {side} the noise {noise:.2g}"
        return Finding(verdict, reason, index, expected, found, margin, shift, noise)


def well_ended(
    new: Sequence[int], *, eos: Collection[int], max_new: int, room: int, stopped: bool
) -> bool:
    """Return whether a completion ends where it should: at its first `eos` token, at `max_new`, at
    the end of the context (`room` new tokens), or (`stopped`) at a stop string."""
    if any(token in eos for token in new[:-1]) or len(new) > min(max_new, room):
        return False
    return stopped or len(new) == min(max_new, room) or (bool(new) and new[-1] in eos)


def min_logit_perturbation(
    logits: torch.Tensor, token: int, scores: Callable[[torch.Tensor], torch.Tensor]
) -> float:
    """Return how far `logits` [vocab] must move for `token` to be chosen; 0.0 if it is already.

    The choice is the argmax of `scores(moved logits)`; each logit moves by at most the returned
    size. This is an upper bound (at most HIGHEST), because only a few directions are tried: raising
    the token alone, and the changes by which a filter (top-k, top-p, min-p) admits the token or
    excludes a competing token. The relative precision along each direction is 0.001.
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
    """Yield directions [vocab], with entries 1 and -1, along which `token` gains on `winner` and on
    other competing tokens."""
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
