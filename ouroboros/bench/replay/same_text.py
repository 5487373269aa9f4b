"""Counts of any drafter at any settings on the very same recorded texts, with no estimate in them.

A drafter that learns from accepted tokens only is replayed without the target. One that asks the
target more (Jacobi windows, rejected nodes, its best tokens) runs live, and in float32 its text is
the recorded one: that is checked. Invariant: every sample of one text has the text's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.replay.recorded_target import check_drafter, replay, sampled
from ouroboros.bench.replay.recording import RecordedRuns, Recording
from ouroboros.bench.run.loop import Bench, eos_ids
from ouroboros.bench.run.prompts import prompt_ids
from ouroboros.bench.tasks.task import Example
from ouroboros.decode import DrafterCapabilities, RootOnly
from ouroboros.decoders import Decoder


@dataclass
class Text:
    """A prompt of a task under one job's sampling, and what plain decoding makes of it."""

    task: str
    job: Bench
    example: Example
    _tape: RecordedRuns | None = field(default=None, repr=False)

    @property
    def cell(self) -> tuple[str, float]:
        """Task and temperature: what counts alike in a score."""
        return self.task, self.job.sampling.temperature

    @property
    def tape(self) -> RecordedRuns:
        """The recorded text; recorded when it is first asked for. Raises `ValueError` where plain
        decoding fails."""
        if self._tape is None:
            plain, target = self.job.measure(RootOnly(), self.example, 0), self.job.target
            if plain.error:
                raise ValueError(f"{self.example.id}: plain decoding failed: {plain.error}")
            prompt = tuple(prompt_ids(target.tokenizer, self.example))
            run = Recording(self.example.id, prompt, plain.new_tokens, plain.finish)
            settings = (self.job.sampling, self.job.max_new, target.max_len, target.vocab_size)
            dtype = str(target.dtype).removeprefix("torch.")
            self._tape = RecordedRuns([run], *settings, frozenset(eos_ids(target)), dtype)
        return self._tape

    def counts(self, decoder: Decoder, name: str) -> Sample:
        """Return a decoder's sample on this text; its `error` says where it failed."""
        (run,) = self.tape.runs
        if replayable(decoder, self.tape):
            try:
                return sampled(name, run, replay(decoder, self.tape, run))  # type: ignore[arg-type]
            except ValueError as error:
                return replace(sampled_nothing(name, run), error=str(error))
        found = replace(self.job.measure(decoder, self.example, 0), decoder=name)
        if not found.error and tuple(found.new_tokens) != run.new_tokens:
            return replace(found, error="another text than plain decoding's: is this float32?")
        return found


def replayable(decoder: Decoder, tape: RecordedRuns) -> bool:
    """Whether a decoder's counts need no target."""
    if DrafterCapabilities.of(decoder).reads_rejected:
        return False
    try:
        check_drafter(decoder, tape)
    except ValueError:
        return False
    return True


def sampled_nothing(name: str, run: Recording) -> Sample:
    """Return a sample of a run that gave nothing."""
    return Sample(run.example, name, run.repeat, 0, len(run.prompt))


def texts(
    tasks: Mapping[str, Sequence[Example]], jobs: Sequence[Bench], limit: int | None
) -> list[Text]:
    """Return every example of every task (`limit` of each at most) under every job, so ordered that
    any first part holds of each task and job alike."""
    found = [
        (place, Text(name, job, example))
        for name, examples in tasks.items()
        for place, example in enumerate(examples[:limit])
        for job in jobs
    ]
    return [text for _, text in sorted(found, key=lambda pair: pair[0])]
