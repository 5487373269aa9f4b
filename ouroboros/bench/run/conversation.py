"""Later turns of a conversation: the same prompt for every decoder.

Each decoder would have its own conversation if it went on from its own answers (in bfloat16, near
ties make texts differ), and then nothing could be compared. So all go on from the answers of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.tasks.task import Conversation, Example, Task


class Answers:
    """What the decoder `first` answered so far, repeat by repeat."""

    def __init__(
        self, task: Task, examples: Sequence[Example], first: str, done: Iterable[Sample]
    ) -> None:
        self._task = task
        self._examples = {example.id: example for example in examples}
        self._first = first
        self._samples: dict[tuple[str, int], Sample] = {}
        for sample in done:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        """Take a sample; those of other decoders do not count."""
        if sample.decoder == self._first:
            self._samples[sample.example, sample.repeat] = sample

    def asked(self, example: Example, repeat: int) -> Example:
        """Return the example as it is asked: a later turn with the conversation before it.

        Raises `ValueError` where the turn before has failed.
        """
        if example.follows is None:
            return example
        answer = self._samples[example.follows, repeat]
        if answer.error:
            raise ValueError(f"{self._first} failed at the turn before: {answer.error}")
        before = self.asked(self._examples[example.follows], repeat)
        assert isinstance(self._task, Conversation)
        return self._task.continued(example, before, answer.text)
