"""Counts of a speculative run at a smaller gamma, from the records of one at a larger.

A chain of draft tokens agrees with the text up to its first mistake, wherever in it the draft
begins. So a step that drafted d tokens and accepted a of them also tells what drafting after o <= a
of these gives: a - o more tokens that agree. Only counts are needed, no model and no text.

Invariant: for chains drafted token by token without a confidence, under argmax or shared noise,
the counts are exactly those of a run with the smaller gamma, except behind the one token that a
fully accepted draft leaves undrafted, its bonus: whether the draft agrees there is not on record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ouroboros.bench.measure.sample import Sample
from ouroboros.trace import StepRecord

FAR = 1 << 30  # tokens: as far as gamma and the run's end allow


@dataclass(frozen=True)
class Chain:
    """Drafting from one position of the text: how many tokens, and how many of them agree."""

    drafted: int
    agreed: int

    def after(self, tokens: int) -> Chain:
        """Return the chain that begins earlier, by so many tokens that agree."""
        return Chain(self.drafted + tokens, self.agreed + tokens)


def truncated(sample: Sample, gamma: int, *, max_new: int, recorded: int, seed: int = 0) -> Sample:
    """Return the sample as a run with `gamma` would have made it; its times are not known (0).

    `recorded` is the gamma of the run on record and `max_new` its length limit. At a bonus token
    the draft is taken to agree as often as elsewhere, drawn by `seed`. Raises `ValueError` for a
    gamma above the recorded one, and for records of other decoders.
    """
    if not 1 <= gamma <= recorded:
        raise ValueError(f"gamma {gamma} must be from 1 to {recorded}, that of the recorded run")
    chains = chains_of(sample.steps, max_new=max_new, recorded=recorded, seed=seed)
    steps: list[StepRecord] = []
    at = 0
    while at < len(chains):
        drafted = min(chains[at].drafted, gamma, max_new - at - 1)
        agreed = min(chains[at].agreed, drafted)
        new = min(agreed + 1, len(chains) - at)
        at += new
        ended = at == len(chains) and sample.steps[-1].sources[-1] == "draft"
        steps.append(_step(drafted, agreed, new, ended=ended))
    return replace(sample, steps=tuple(steps), wall_s=0.0, ttft_s=None)


def chains_of(
    steps: Sequence[StepRecord], *, max_new: int, recorded: int, seed: int = 0
) -> list[Chain]:
    """Return the chain from each position of the new text, of which there is one per new token.

    Arguments and errors as in `truncated`.
    """
    if any(s.scored != s.drafted + 1 or s.draft_calls != s.drafted for s in steps):
        raise ValueError("only chains drafted token by token can be cut short: give a run of them")
    tried = sum(min(s.accepted + 1, s.drafted) for s in steps)
    rate = sum(s.accepted for s in steps) / tried if tried else 0.0
    draw = random.Random(seed)
    chains: list[Chain] = []
    start = sum(s.new for s in steps)
    for step in reversed(steps):
        start -= step.new
        cut_off = step.drafted == min(recorded, max_new - start - 1)
        bonus = Chain(FAR, 0)
        if chains and draw.random() < rate:
            bonus = chains[0].after(1)
        chains = [*_within(step, bonus, cut_off), *chains]
    return chains


def _within(step: StepRecord, bonus: Chain, cut_off: bool) -> list[Chain]:
    """The chains from each position of a step's new tokens. `bonus` is the one behind a fully
    accepted draft, `cut_off` says that gamma or the run's end, no confidence, ended the draft."""
    drafted, agreed = step.drafted, step.accepted
    if agreed < drafted:
        return [Chain(FAR if cut_off else drafted - o, agreed - o) for o in range(step.new)]
    end = bonus if cut_off else Chain(0, 0)
    return [*(end.after(drafted - o) for o in range(drafted)), bonus][: step.new]


def _step(drafted: int, agreed: int, new: int, *, ended: bool) -> StepRecord:
    """A step's counts; `ended` says that the text ends with a token of the draft."""
    own = "bonus" if drafted else "target"
    if agreed < drafted:
        own = "draft" if ended else "correction"
    sources = (*["draft"] * agreed, own)[:new]
    return StepRecord(
        drafted=drafted,
        scored=drafted + 1,
        accepted=min(agreed, new - 1),
        new=new,
        draft_calls=drafted,
        sources=sources,
        draft_s=0.0,
        verify_s=0.0,
        host_s=0.0,
        draft_scored=drafted,
        target_forwards=1,
        draft_forwards=drafted,
    )
