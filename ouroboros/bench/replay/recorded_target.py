"""A drafter against a recording, with no target: the live run's counts, without its hardware.

The loop is `ouroboros.decode.stream` itself; only the target is another: one that computes nothing
and whose choices are looked up. Invariant: a replay under the recorded settings and dtype proposes,
accepts and counts what the live run did, step by step, as far as the draft model computes the same
here (in bfloat16, near ties may fall otherwise on another device). What a drafter asks that the
recording cannot answer is an error, never a guess, unless rates to imitate it by are given.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import overload

import torch

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.metrics.scripted import Drafting, ScriptedModel
from ouroboros.bench.replay.imitated_draft import ImitatedDraft
from ouroboros.bench.replay.imitation import Rates, imitated
from ouroboros.bench.replay.recording import RecordedRuns, Recording
from ouroboros.bench.run.recorder import PrefixKey, places
from ouroboros.decode import Drafter, DrafterCapabilities, stream
from ouroboros.select import Ranked, TokenSelector
from ouroboros.trace import DecodeTrace, cut
from ouroboros.tree import TokenTree

UNKNOWN = -1


class RecordedTarget(ScriptedModel):
    """A target that computes nothing, of a recording's context and vocabulary."""

    def __init__(self, tape: RecordedRuns, *, tokenizer=None) -> None:
        super().__init__(tape.max_len, vocab_size=tape.vocab_size, tokenizer=tokenizer)


class RecordedChoice(TokenSelector):
    """The recorded token after each node that agrees with the recording; elsewhere what was
    recorded of the target's predictions, or one imitated by `rates`, or `UNKNOWN`."""

    def __init__(self, recording: Recording, rates: Rates | None = None) -> None:
        self.recorded = recording.tokens
        self.predictions = dict(recording.predictions)
        self.rates = rates

    def __call__(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> list[int]:
        found = [self._at(place) for place in places(len(tokens), tree, self.recorded)]
        return [found[node] for node in tree.logit_nodes]

    def ranked(
        self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree, count: int = 2
    ) -> Ranked:
        raise NotImplementedError("a recording knows no runners-up")

    def scores(self, logits: torch.Tensor, tokens: Sequence[int], tree: TokenTree) -> torch.Tensor:
        raise NotImplementedError("a recording knows no scores")

    def _at(self, place: PrefixKey) -> int:
        along, off = place
        if not off and along < len(self.recorded):
            return self.recorded[along]
        if self.rates is not None and place not in self.predictions:
            self.predictions[place] = imitated(self.recorded, place, self.rates)
        return self.predictions.get(place, UNKNOWN)


class Predictions(Sequence[int]):
    """What a drafter is shown after a step; reading what is not known is an error."""

    def __init__(self, chosen: Sequence[int], asked: Collection[int], who: str) -> None:
        self.chosen, self.asked, self.who = chosen, frozenset(asked), who

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self[node] for node in range(*at.indices(len(self)))]
        node = at + len(self) if at < 0 else at
        if self.chosen[node] == UNKNOWN and node in self.asked:
            raise ValueError(
                f"{self.who} asks for a prediction that the recording does not hold: record a run "
                "of the same pair and settings with record_predictions=true"
            )
        return self.chosen[node]


class Replayed(Drafting):
    """The drafter under replay: it drafts by its own choice, and learns only what is known."""

    def __init__(self, drafter: Drafter, choose: TokenSelector) -> None:
        super().__init__(drafter, choose)
        self.observe = self._observe

    def _observe(self, tree: TokenTree, chosen: Sequence[int], path: Sequence[int]) -> None:
        who = type(self.drafter).__name__
        self.drafter.observe(tree, Predictions(chosen, tree.logit_nodes, who), path)


def check_drafter(drafter: object, tape: RecordedRuns, *, rates: Rates | None = None) -> None:
    """Raise `ValueError` for a decoder that this tape cannot answer: another engine, one that needs
    the target's probabilities, drafts in another dtype than was recorded, or, without `rates`,
    learns from predictions that were not."""
    _drafts_as_recorded(drafter, tape)
    reads = DrafterCapabilities.of(drafter).reads_rejected
    if reads and rates is None and not any(r.predictions for r in tape.runs):
        raise ValueError(
            f"{type(drafter).__name__} learns from what the target predicts at rejected nodes, "
            "which this recording does not hold: record a run of it with record_predictions=true "
            "timing=false"
        )


def _drafts_as_recorded(drafter: object, tape: RecordedRuns) -> None:
    name = type(drafter).__name__
    if not hasattr(drafter, "propose"):
        raise ValueError(f"{name} is another engine, not a drafter: leave it out of decoder=[...]")
    own, choose = DrafterCapabilities.of(drafter), tape.sampling.choose("", 0, vocab=1)
    if own.rule(choose) is not choose:
        raise ValueError(
            f"{name} accepts by rejection sampling, which needs the target's probabilities: replay "
            "it with verification=shared"
        )
    if own.ranks:
        raise ValueError(
            f"{name} learns from the target's {own.ranks} best tokens at each node, and only the "
            "best is recorded: leave it out of decoder=[...] and run it live"
        )
    draft = own.draft
    if isinstance(draft, ImitatedDraft):
        if tape.sampling.temperature:
            raise ValueError(
                "an imitated draft knows what comes first, not the odds of sampling: give a "
                f"recording at temperature 0 (this one has {tape.sampling.temperature:g})"
            )
        return
    dtype = "" if draft is None else str(draft.dtype).removeprefix("torch.")
    if draft is not None and tape.dtype not in (None, dtype):
        raise ValueError(
            f"{name} drafts in {dtype} here, the recording was made in {tape.dtype}: "
            f"give model.dtype={tape.dtype}"
        )


def sampled(name: str, recording: Recording, trace: DecodeTrace, *, text: str = "") -> Sample:
    """Return a replayed run as a sample, without times of its own."""
    blank = Sample(recording.example, name, recording.repeat, 0, len(recording.prompt))
    return replace(
        blank,
        new_tokens=tuple(trace.new_tokens),
        text=text,
        finish=trace.finish,
        steps=tuple(trace.steps),
        group=recording.group,
    )


def replay(
    drafter: Drafter,
    tape: RecordedRuns,
    recording: Recording,
    *,
    max_new: int | None = None,
    rates: Rates | None = None,
) -> DecodeTrace:
    """Return the trace of the run that the recording was; its times are the draft's and the host's.

    `max_new` defaults to the tape's. With `rates`, predictions off the text are imitated. Raises
    `ValueError` where the recording ends at a length limit before `max_new`, and as
    `check_drafter`.
    """
    check_drafter(drafter, tape, rates=rates)
    said = len(recording.new_tokens)
    limit = max_new or tape.max_new or said
    if recording.finish == "length" and limit > said:
        raise ValueError(
            f"{recording.example} was recorded up to {said} tokens: max_new={limit} is too much"
        )
    draft = DrafterCapabilities.of(drafter).draft
    if isinstance(draft, ImitatedDraft):
        draft.follow(recording.tokens)
    elif draft is not None:
        draft.empty()
    choose = tape.sampling.choose(recording.example, recording.repeat, vocab=tape.vocab_size)
    played = Replayed(drafter, choose)
    target = RecordedTarget(tape)
    for trace in stream(
        target,  # type: ignore[arg-type]
        played,
        recording.prompt,
        max_new=limit,
        eos=tape.eos,
        choose=RecordedChoice(recording, rates),
    ):
        if len(trace.new_tokens) >= said:
            break
    return cut(trace, said) if recording.finish == "stop" and said <= limit else trace
