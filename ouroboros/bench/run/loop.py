"""The run loop: every decoder on every prompt, interleaved so that drift affects all alike.

All decoders run on a prompt before the next prompt starts, and the decoder that goes first rotates.
Invariants:

- Nothing is cached between samples except phrase pools that a decoder carries over.
- Each sample is on disk before the next one begins. A failure is recorded; the run continues.
- Carried pools are saved after each sample's line, so they are never ahead of the samples. A run
  killed in between resumes without that sample's phrases.
- Later turns of a conversation continue the first decoder's answers, so that all decoders get the
  same prompt.
- Every completion is truncated at its first stop string, which depends only on its tokens.

With a `batch_size` above 1, decoders alternate by as many prompts (with `refill`, `REFILLED` times
as many), which they decode together. A sample is on disk before the next step after its row's end.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from ouroboros import vocab
from ouroboros.bench.metrics.meter import Meter
from ouroboros.bench.metrics.sample import Sample, step_s
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import FAILURES, SAMPLES, SCORES, ResultsFolder
from ouroboros.bench.run.identity import without_paths
from ouroboros.bench.run.prompts import Answers, check_ids, longest, prompt_ids
from ouroboros.bench.run.recorder import Recorder
from ouroboros.bench.tasks.task import Example, Task
from ouroboros.costs import Costs
from ouroboros.decode import Decoding, begin, stream, together
from ouroboros.decoder_factory import Decoder, DecoderFactory, Peer
from ouroboros.drafters.pool import load_state, save_state
from ouroboros.engine.model import CachedModel
from ouroboros.trace import DecodeTrace, cut

WARM_UP = Example(
    "warm-up",
    "from collections import deque\n\n\ndef running_mean(values, width):\n"
    '    """Yield the mean of each window of `width` values.\n\n'
    "    >>> list(running_mean([2, 4, 6], 2))\n    [3.0, 5.0]\n"
    '    """\n    window = deque(maxlen=width)\n',
)
WARM_UP_TOKENS = 32
REFILLED = 4  # prompts for each place of a batch between two decoders


@dataclass
class Bench:
    """A run with everything loaded: models, task, decoders.

    The caches of all `models` are emptied before each sample; `costs` are the decoders' costs, if
    any. The other options are those of `RunConfig`. Raises `ValueError` if the examples need a chat
    template that the tokenizer lacks, if a prompt has a token id outside the vocabulary, and if the
    task, a model or a decoder cannot have a `batch_size` above 1.
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
    batch_size: int = 1
    refill: bool = False

    def __post_init__(self) -> None:
        tokenizer, known = self.target.tokenizer, self.target.vocab_size
        chats = any(example.messages for example in self.examples)
        if chats and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "task.template=chat needs a tokenizer with a chat template, and this model's has "
                "none: use another task.template, or an instruct model"
            )
        for example in self.examples if len(tokenizer) > known else ():
            check_ids(prompt_ids(tokenizer, example), known, example.id)
        if self.batch_size > 1 and (reason := self._why_one_by_one()):
            raise ValueError(f"batch_size={self.batch_size}: {reason}")

    def _why_one_by_one(self) -> str | None:
        """Return why prompts must be decoded one by one, and the remedy; None if they need not."""
        if any(example.follows for example in self.examples):
            return "the turns of a conversation follow each other: give batch_size=1"
        for model in self.models:
            if reason := model.why_not_together():
                return f"{type(model.model).__name__} takes one sequence at a time, as {reason}"
        for name, make in self.decoders.items():
            made = make()
            alone = isinstance(made, Peer) and not getattr(made, "joins_rows", False)
            if alone or getattr(made, "carries_state", False):
                return f"{name} decodes one prompt at a time: leave it out, or give batch_size=1"
        return None

    @property
    def total(self) -> int:
        """The number of samples in a complete run."""
        return len(self.examples) * len(self.decoders) * self.repeats

    @cached_property
    def meter(self) -> Meter:
        """The meter of time, memory and energy."""
        return Meter(self.models)

    def turns(self) -> Iterator[tuple[Example, str, int, int]]:
        """Yield (example, decoder, repeat, order) in the order of measurement.

        The list of decoders is rotated by one from each prompt, or batch, to the next.
        """
        names = list(self.decoders)
        size = self.batch_size * (REFILLED if self.refill and self.batch_size > 1 else 1)
        for repeat in range(self.repeats):
            for start in range(0, len(self.examples), size):
                first = (start // size + repeat) % len(names)
                for order, name in enumerate([*names[first:], *names[:first]]):
                    for example in self.examples[start : start + size]:
                        yield example, name, repeat, order

    def run(
        self,
        folder: ResultsFolder,
        on_sample: Callable[[Sample], object],
        *,
        retry_failed: bool = False,
    ) -> None:
        """Measure the samples that the folder lacks; `on_sample` gets every sample, old ones first.

        With `retry_failed`, failed samples are measured again; the new line replaces the old one.
        Each decoder first decodes a fixed text as warm-up and is then rebuilt; carried pools are
        restored from the folder.
        """
        done = {s.key: s for s in folder.load_samples() if not (retry_failed and s.error)}
        for sample in done.values():
            on_sample(sample)
        missing = [turn for turn in self.turns() if (turn[0].id, *turn[1:3]) not in done]
        names = dict.fromkeys(name for _, name, *_ in missing)
        for model in self.models if missing else ():
            model.prepare(longest(self.target.tokenizer, self.examples) + self.max_new)
        places = range(self.batch_size)
        warm_up = replace(self, max_new=min(self.max_new, WARM_UP_TOKENS))
        for name in names:
            made = [self.decoders[name]() for _ in places]
            list(warm_up.measured(made, [(WARM_UP, 0)] * self.batch_size))
        decoders = {name: [self.decoders[name]() for _ in places] for name in names}
        carried: dict[str, Any] = {
            name: one
            for name, (one, *_) in decoders.items()
            if getattr(one, "carries_state", False)
        }
        tokenizer_id = vocab.fingerprint(self.target.tokenizer) if carried else ""
        for name in carried.keys() & {decoder for _, decoder, _ in done}:
            if (path := folder.pool_path(name)).exists():
                load_state(carried[name], path, tokenizer_id=tokenizer_id)
        answers = Answers(self.task, self.examples, next(iter(self.decoders)), done)
        number = max((sample.batch for sample in done.values()), default=0)
        for (name, repeat, order), turns in groupby(missing, key=lambda turn: turn[1:]):
            trees, number = self.record_trees is not False and repeat == 0, number + 1
            record = trees or self.record_predictions
            asked = [(example, repeat) for example, *_ in turns]
            found = self.measured(decoders[name], asked, answers, number, record=record)
            for sample, decoder, failure in found:
                sample = replace(sample, decoder=name, order=order)
                done[sample.key] = sample
                if failure:
                    folder.append(FAILURES, {"traceback": failure}, sample.key)
                if isinstance(decoder, Recorder) and self.record_predictions:
                    folder.add_predictions(sample.key, decoder.predictions(sample.new_tokens))
                if isinstance(decoder, Recorder) and trees:
                    steps = decoder.trees()[: len(sample.steps)]
                    proposed = [step.tree for step in steps if len(step.tree) > 1]
                    if any(tree.probability or self.record_trees for tree in proposed):
                        folder.add_trees(sample.key, steps)
                folder.append(SAMPLES, sample.to_dict())
                if name in carried:
                    save_state(carried[name], folder.pool_path(name), tokenizer_id=tokenizer_id)
                on_sample(sample)

    def measured(
        self,
        decoders: Sequence[Decoder],
        asked: Sequence[tuple[Example, int]],
        answers: Answers | None = None,
        number: int = 0,
        *,
        record: bool = False,
    ) -> Iterator[Outcome]:
        """Decode (example, repeat) pairs; yield each sample when it has ended.

        `decoders` has one decoder per row of a batch; `number` is the number of the batch.
        """
        if self.batch_size > 1:
            method = self._by_peer if isinstance(decoders[0], Peer) else self._together
            yield from method(decoders, asked, number, record)
            return
        (one,) = decoders
        for example, repeat in asked:
            failures, decoder = list[str](), one
            if record and not isinstance(one, Peer):
                decoder = Recorder(one)
            sample = self.measure(decoder, example, repeat, answers, on_error=failures.append)
            yield Outcome(sample, decoder, "".join(failures))

    def measure(
        self,
        decoder: Decoder,
        example: Example,
        repeat: int,
        answers: Answers | None = None,
        on_error: Callable[[str], object] = lambda traceback: None,
    ) -> Sample:
        """Decode one example from empty caches; a failure becomes the sample's `error`, and its
        traceback goes to `on_error`.

        Later turns of a conversation need `answers`.
        """
        sample = Sample(example.id, "", repeat, 0, 0, group=example.group)
        tokenizer, ttft_s = self.target.tokenizer, None
        try:
            asked = example if answers is None else answers.with_history(example, repeat)
            prompt = prompt_ids(tokenizer, asked)
            sample = replace(sample, prompt_tokens=len(prompt))
            limits = self._limits(prompt, example, repeat)
            stop = StopStrings(tokenizer, self.task.stop)
            for model in self.models:
                model.empty()
            started = self.meter.start()
            if isinstance(decoder, Peer):
                trace = decoder.run(self.target, prompt, **limits, stop=stop)
                keep = StopStrings(tokenizer, self.task.stop)(trace.new_tokens)
                ttft_s = step_s(trace.steps[0]) if trace.steps else None
            else:
                for trace in stream(self.target, decoder, prompt, **limits):
                    if ttft_s is None and trace.steps:
                        ttft_s = time.perf_counter() - started
                    keep = stop(trace.new_tokens)
                    if keep is not None:
                        break
            sample = replace(sample, **self.meter.stop(), ttft_s=ttft_s)
            return completed(sample, trace, keep, tokenizer)
        except Exception as error:
            sample, reason = failed(sample, error)
            on_error(reason)
            return sample

    def _limits(self, prompt: Sequence[int], example: Example, repeat: int) -> dict[str, Any]:
        """Return what `stream` takes besides model, decoder and prompt, whose ids are checked."""
        known = self.target.vocab_size
        check_ids(prompt, known, example.id)
        choose = self.sampling.choose(example.id, repeat, vocab=known)
        return {"max_new": self.max_new, "eos": eos_ids(self.target), "choose": choose}

    def _together(
        self, decoders: Sequence[Any], asked: Sequence, number: int, record: bool
    ) -> Iterator[Outcome]:
        """Measure pairs together, a row each; see `measured`. The time between two outcomes, in
        which samples are written, does not count."""
        free, rows, clock, unbegun = list(decoders), dict[Decoding, Row](), 0.0, list[Outcome]()
        tokenizer = self.target.tokenizer

        def begun() -> Iterator[Decoding]:
            for example, repeat in asked:
                sample = Sample(example.id, "", repeat, 0, 0, group=example.group)
                sample = replace(sample, batch_size=self.batch_size, batch=number)
                sample = replace(sample, began_s=clock, ended_s=clock)
                decoder = Recorder(free[-1]) if record else free[-1]
                try:
                    prompt = prompt_ids(tokenizer, example)
                    sample = replace(sample, prompt_tokens=len(prompt))
                    limits = self._limits(prompt, example, repeat)
                    own = begin(self.target, decoder, prompt, **limits)
                except Exception as error:
                    sample, reason = failed(sample, error)
                    unbegun.append(Outcome(sample, decoder, reason))
                    continue
                stop = StopStrings(tokenizer, self.task.stop)
                rows[own] = Row(sample, decoder, free.pop(), stop)
                yield own

        def fail(own: Decoding, error: Exception) -> None:
            rows[own].error = error

        for model in self.models:
            model.empty()
        self.meter.start()
        steps = together(begun(), self.batch_size, refill=self.refill, on_error=fail)
        while True:
            started = time.perf_counter()
            live = next(steps, [])
            for own in live:
                rows[own].keep = rows[own].stop(own.trace.new_tokens)
                if rows[own].keep is not None:
                    own.left = 0
            seconds = time.perf_counter() - started
            clock += seconds
            for own in live:
                rows[own].add(seconds / len(live))
            yield from unbegun
            unbegun.clear()
            for own in [own for own in live if own.left <= 0]:
                row = rows.pop(own)
                free.append(row.place)
                peak = self.meter.stop()["peak_bytes"]
                sample = replace(row.sample, wall_s=row.wall_s, ttft_s=row.ttft_s, ended_s=clock)
                if row.error is None:
                    sample = replace(sample, peak_bytes=peak)
                    done = completed(sample, own.trace, row.keep, tokenizer)
                    yield Outcome(done, row.decoder, "")
                else:
                    sample, reason = failed(sample, row.error)
                    yield Outcome(sample, row.decoder, reason)
            if not live:
                return

    def _by_peer(
        self, decoders: Sequence[Any], asked: Sequence, number: int, record: bool
    ) -> Iterator[Outcome]:
        """Measure pairs in batches of a peer's own, each to its last row; see `measured`."""
        peer, clock, tokenizer = decoders[0], 0.0, self.target.tokenizer
        for start in range(0, len(asked), self.batch_size):
            rows = asked[start : start + self.batch_size]
            prompts = [prompt_ids(tokenizer, example) for example, _ in rows]
            samples = [
                Sample(example.id, "", repeat, 0, len(prompt), group=example.group)
                for (example, repeat), prompt in zip(rows, prompts, strict=True)
            ]
            place: dict[str, Any] = {
                "batch_size": self.batch_size,
                "batch": number,
                "began_s": clock,
            }
            samples = [replace(sample, **place) for sample in samples]
            self.meter.start()
            try:
                pairs = zip(rows, prompts, strict=True)
                limits = [self._limits(prompt, *row) for row, prompt in pairs]
                stops = [StopStrings(tokenizer, self.task.stop) for _ in rows]
                chooses = [own.pop("choose") for own in limits]
                traces = peer.run_together(
                    self.target, prompts, **limits[0], chooses=chooses, stops=stops
                )
            except Exception as error:
                for sample in samples:
                    sample, reason = failed(replace(sample, ended_s=clock), error)
                    yield Outcome(sample, peer, reason)
                continue
            measured = self.meter.stop()
            rest_s = measured["wall_s"] - sum(step_s(t) for trace in traces for t in trace.steps)
            for sample, trace in zip(samples, traces, strict=True):
                latency_s = sum(step.rows * step_s(step) for step in trace.steps)
                first_s, *_ = own_s = [step_s(step) for step in trace.steps] or [0.0]
                sample = replace(
                    sample,
                    wall_s=sum(own_s) + rest_s / len(rows),
                    ttft_s=first_s,
                    ended_s=clock + rest_s + latency_s,
                    peak_bytes=measured["peak_bytes"],
                )
                keep = StopStrings(tokenizer, self.task.stop)(trace.new_tokens)
                yield Outcome(completed(sample, trace, keep, tokenizer), peer, "")
            clock += measured["wall_s"]

    def score(self, folder: ResultsFolder, on_score: Callable[[], object]) -> None:
        """Score the folder's samples after all timing; equal completions are scored once."""
        known: dict[tuple[str, str], dict[str, float]] = {}
        examples, done = {example.id: example for example in self.examples}, folder.load_scores()
        for sample in folder.load_samples():
            if sample.error or sample.key in done:
                continue
            completion = (sample.example, sample.text)
            if completion not in known:
                known[completion] = self.task.score(examples[sample.example], sample.text)
            if scores := known[completion]:
                key = dict(zip(("example", "decoder", "repeat"), sample.key, strict=True))
                folder.append(SCORES, {**key, "scores": scores})
            on_score()


class Outcome(NamedTuple):
    """A sample, the decoder that made it (a `Recorder` where steps are recorded), and the traceback
    of a failure, or ""."""

    sample: Sample
    decoder: Decoder
    failure: str


@dataclass(eq=False)
class Row:
    """A row of a batch: its sample, decoder, place and stop strings, and what came of it so far."""

    sample: Sample
    decoder: Decoder
    place: Decoder
    stop: StopStrings
    keep: int | None = None
    error: Exception | None = None
    wall_s: float = 0.0
    ttft_s: float | None = None

    def add(self, seconds: float) -> None:
        """Add the row's share of a step."""
        self.wall_s += seconds
        self.ttft_s = self.wall_s if self.ttft_s is None else self.ttft_s


def completed(sample: Sample, trace: DecodeTrace, keep: int | None, tokenizer) -> Sample:
    """Return the sample with a trace, truncated to `keep` new tokens (None: whole)."""
    trace = trace if keep is None else cut(trace, keep)
    return replace(
        sample,
        new_tokens=tuple(trace.new_tokens),
        text=text_of(tokenizer, trace.new_tokens),
        finish=trace.finish,
        steps=tuple(trace.steps),
    )


def failed(sample: Sample, error: Exception) -> tuple[Sample, str]:
    """Return the sample with an error, and its traceback."""
    reason = (str(error).strip() or "no message").splitlines()[0]
    found = without_paths("".join(traceback.format_exception(error)))
    return replace(sample, error=without_paths(f"{type(error).__name__}: {reason}")), found


def eos_ids(model: CachedModel) -> frozenset[int]:
    """Return the model's end-of-sequence ids: generation config, else tokenizer, else none."""
    config = getattr(model.model, "generation_config", None)
    found = (getattr(source, "eos_token_id", None) for source in (config, model.tokenizer))
    ids = next((ids for ids in found if ids is not None), ())
    return frozenset([ids] if isinstance(ids, int) else ids)


class StopStrings:
    """Finds the first stop string in a growing completion: call it after each step.

    Only the tail is decoded: the tokens since the last call and, before them, as many tokens as the
    longest stop string has bytes, since a token is at least one byte.
    """

    def __init__(self, tokenizer, strings: Sequence[str]) -> None:
        if "" in strings:
            raise ValueError("a stop string is empty: it would end every completion at once")
        self.tokenizer, self.strings = tokenizer, tuple(strings)
        self._reach = max((len(s.encode()) for s in self.strings), default=0) + 4
        self._seen = 0

    def __call__(self, new_tokens: Sequence[int]) -> int | None:
        """Return the length of the shortest prefix that contains a stop string, else None."""
        if not self.strings:
            return None
        # U+FFFD stands for part of a character: any text has it that is cut in the middle of one
        partial = "\N{REPLACEMENT CHARACTER}" in "".join(self.strings)
        start = 0 if partial else max(0, self._seen - self._reach)
        ends = range(self._seen + 1, len(new_tokens) + 1)
        if partial or self._stops(new_tokens[start:]):
            found = next((end for end in ends if self._stops(new_tokens[start:end])), None)
            if found is not None:
                return found
        self._seen = len(new_tokens)
        return None

    def _stops(self, tokens: Sequence[int]) -> bool:
        text = text_of(self.tokenizer, tokens)
        return any(string in text for string in self.strings)


def text_of(tokenizer, tokens: Sequence[int]) -> str:
    """Return the exact text of tokens: no clean-up of spaces, no special tokens."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return tokenizer.decode(list(tokens), **options)
