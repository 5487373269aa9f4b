"""The run loop: every decoder on every prompt, alternated so that drift hits all alike.

For each prompt all decoders take their turn, and the one that goes first changes from prompt to
prompt. Invariants: nothing is cached between two samples but what a decoder itself chose to carry
(a phrase pool); each sample is on disk before the next begins; a failure is a row, not an end; a
later turn of a conversation follows the first decoder's answers, so that all decoders meet the same
prompt.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ouroboros.bench.metrics.meter import Meter
from ouroboros.bench.metrics.sample import Sample
from ouroboros.bench.run.conversation import Answers
from ouroboros.bench.run.pools import CarriedPools
from ouroboros.bench.run.prompt import check_chat, longest, prompt_ids
from ouroboros.bench.run.provenance import without_paths
from ouroboros.bench.run.recorder import Recorder
from ouroboros.bench.run.sampling import Sampling
from ouroboros.bench.run.stop import text_of
from ouroboros.bench.run.store import SAMPLES, SCORES, ResultsFolder
from ouroboros.bench.run.turn import Decoder, DecoderFactory, decoded
from ouroboros.bench.tasks.task import Example, Task
from ouroboros.costs.surface import Costs
from ouroboros.engine.model import CachedModel

WARM_UP = Example(
    "warm-up",
    "from collections import deque\n\n\ndef running_mean(values, width):\n"
    '    """Yield the mean of each window of `width` values.\n\n'
    "    >>> list(running_mean([2, 4, 6], 2))\n    [3.0, 5.0]\n"
    '    """\n    window = deque(maxlen=width)\n',
)
WARM_UP_TOKENS = 32


@dataclass
class Bench:
    """What one run measures. `models` are all the models whose caches are emptied per sample.

    `record_predictions` also writes what the target predicted at every node, for replays.
    `record_trees` writes the trees of the first repeat: of every drafter, of none, or (None) of
    those that say how likely each node is. `costs` are those that decoders were told, if any were.
    Raises `ValueError` where the examples need a chat template and the tokenizer has none.
    """

    target: CachedModel
    models: Sequence[CachedModel]
    task: Task
    examples: Sequence[Example]
    decoders: Mapping[str, DecoderFactory]
    max_new: int
    repeats: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    record_predictions: bool = False
    record_trees: bool | None = None
    costs: Costs | None = None

    def __post_init__(self) -> None:
        check_chat(self.target.tokenizer, self.examples)

    @property
    def total(self) -> int:
        """Samples in a complete run."""
        return len(self.examples) * len(self.decoders) * self.repeats

    @cached_property
    def meter(self) -> Meter:
        """What measures a sample."""
        return Meter(self.models)

    def turns(self) -> Iterator[tuple[Example, str, int, int]]:
        """Yield (example, decoder, repeat, order) in the order of measurement.

        The list of decoders is rotated by one from each prompt to the next.
        """
        names = list(self.decoders)
        for repeat in range(self.repeats):
            for index, example in enumerate(self.examples):
                first = (index + repeat) % len(names)
                for order, name in enumerate([*names[first:], *names[:first]]):
                    yield example, name, repeat, order

    def run(
        self,
        folder: ResultsFolder,
        on_sample: Callable[[Sample], None],
        *,
        retry_failed: bool = False,
    ) -> None:
        """Measure what is not yet in the folder; `on_sample` sees every sample, old ones first.

        With `retry_failed` a failed sample counts as missing; its new line takes the old one's
        place. Pools that decoders carry over are taken up from the folder.
        """
        with folder.appending(SAMPLES) as lines:
            done = [s for s in folder.load_samples() if not (retry_failed and s.error)]
            for sample in done:
                on_sample(sample)
            missing = self._missing(done)
            decoders = self._warm(missing)
            pools = CarriedPools(folder.path, decoders, self.target.tokenizer)
            pools.restore({sample.decoder for sample in done})
            answers = Answers(self.task, self.examples, next(iter(self.decoders)), done)
            for example, name, repeat, order in missing:
                decoder = self._watched(decoders[name], repeat)
                reasons: list[str] = []
                sample = self.measure(decoder, example, repeat, answers, on_error=reasons.append)
                sample = replace(sample, decoder=name, order=order)
                answers.add(sample)
                for reason in reasons:
                    folder.add_failure(sample.key, reason)
                if isinstance(decoder, Recorder):
                    self._keep(folder, sample, decoder)
                lines.append(sample.to_dict())
                pools.save(name)
                on_sample(sample)

    def score(self, folder: ResultsFolder, on_score: Callable[[], None]) -> None:
        """Score the folder's samples after all timing; equal completions are scored once."""
        known: dict[tuple[str, str], dict[str, float]] = {}
        examples = {example.id: example for example in self.examples}
        with folder.appending(SCORES) as lines:
            done = folder.load_scores()
            for sample in folder.load_samples():
                if sample.error or sample.key in done:
                    continue
                question = (sample.example, sample.text)
                if question not in known:
                    known[question] = self.task.score(examples[sample.example], sample.text)
                if known[question]:
                    lines.append(_score_row(sample, known[question]))
                on_score()
        folder.drop_if_empty(SCORES)

    def measure(
        self,
        decoder: Decoder,
        example: Example,
        repeat: int,
        answers: Answers | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> Sample:
        """Decode one example from empty caches; a failure becomes the sample's `error`, and its
        traceback goes to `on_error`.

        `answers` are needed for the later turns of a conversation.
        """
        blank = Sample(example.id, "", repeat, 0, 0, group=example.group)
        try:
            asked = example if answers is None else answers.asked(example, repeat)
            prompt = prompt_ids(self.target.tokenizer, asked)
            blank = replace(blank, prompt_tokens=len(prompt))
            return self._timed(decoder, prompt, blank)
        except Exception as error:
            reason = (str(error).strip() or "no message").splitlines()[0]
            if on_error is not None:
                on_error(without_paths("".join(traceback.format_exception(error))))
            return replace(blank, error=without_paths(f"{type(error).__name__}: {reason}"))

    def _timed(self, decoder: Decoder, prompt: list[int], blank: Sample) -> Sample:
        for model in self.models:
            model.tokens = []
        choose = self.sampling.choose(blank.example, blank.repeat, vocab=self.target.vocab_size)
        trace, ttft_s = decoded(
            self.target,
            decoder,
            prompt,
            max_new=self.max_new,
            choose=choose,
            stop=self.task.stop,
            started=self.meter.start(),
        )
        cost = self.meter.stop()
        return replace(
            blank,
            new_tokens=tuple(trace.new_tokens),
            text=text_of(self.target.tokenizer, trace.new_tokens),
            finish=trace.finish,
            steps=tuple(trace.steps),
            wall_s=cost.wall_s,
            ttft_s=ttft_s,
            peak_bytes=cost.peak_bytes,
            energy_j=cost.energy_j,
        )

    def _watched(self, decoder: Decoder, repeat: int) -> Decoder:
        """Return the decoder, in a recorder where something of it is wanted and it is a drafter."""
        wanted = self.record_predictions or (self.record_trees is not False and repeat == 0)
        if not wanted or hasattr(decoder, "run"):
            return decoder
        return Recorder(decoder)  # type: ignore[arg-type]

    def _keep(self, folder: ResultsFolder, sample: Sample, recorder: Recorder) -> None:
        """Write what was noted of a sample, before its own line."""
        if self.record_predictions:
            folder.add_predictions(sample.key, recorder.predictions(sample.new_tokens))
        trees = recorder.trees()[: len(sample.steps)]
        told = any(tree.probability or self.record_trees for tree in trees if len(tree.tokens) > 1)
        if told and sample.repeat == 0 and self.record_trees is not False:
            folder.add_trees(sample.key, trees)

    def _missing(self, done: Sequence[Sample]) -> list[tuple[Example, str, int, int]]:
        have = {sample.key for sample in done}
        return [turn for turn in self.turns() if (turn[0].id, turn[1], turn[2]) not in have]

    def _warm(self, missing: Sequence[tuple[Example, str, int, int]]) -> dict[str, Decoder]:
        """Return new decoders, after each was tried once, as another object, on a text of ours."""
        names = dict.fromkeys(turn[1] for turn in missing)
        if names:
            for model in self.models:
                model.prepare(longest(self.target.tokenizer, self.examples) + self.max_new)
        short = replace(self, max_new=min(self.max_new, WARM_UP_TOKENS))
        for name in names:
            short.measure(self.decoders[name](), WARM_UP, 0)
        return {name: self.decoders[name]() for name in names}


def _score_row(sample: Sample, scores: dict[str, float]) -> dict:
    example, decoder, repeat = sample.key
    return {"example": example, "decoder": decoder, "repeat": repeat, "scores": scores}
