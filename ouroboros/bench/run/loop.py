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
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

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
from ouroboros.decode import stream
from ouroboros.decoder_factory import Decoder, DecoderFactory, Peer
from ouroboros.drafters.pool import load_state, save_state
from ouroboros.engine.model import CachedModel
from ouroboros.trace import cut

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
    """A run with everything loaded: models, task, decoders.

    The caches of all `models` are emptied before each sample; `costs` are the decoders' costs, if
    any. The other options are those of `RunConfig`. Raises `ValueError` if the examples need a chat
    template that the tokenizer lacks, or if a prompt has a token id outside the vocabulary.
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
        tokenizer, known = self.target.tokenizer, self.target.vocab_size
        chats = any(example.messages for example in self.examples)
        if chats and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "task.template=chat needs a tokenizer with a chat template, and this model's has "
                "none: use another task.template, or an instruct model"
            )
        for example in self.examples if len(tokenizer) > known else ():
            check_ids(prompt_ids(tokenizer, example), known, example.id)

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
        warm_up = replace(self, max_new=min(self.max_new, WARM_UP_TOKENS))
        for name in names:
            warm_up.measure(self.decoders[name](), WARM_UP, 0)
        decoders = {name: self.decoders[name]() for name in names}
        carried: dict[str, Any] = {
            name: one for name, one in decoders.items() if getattr(one, "carries_state", False)
        }
        tokenizer_id = vocab.fingerprint(self.target.tokenizer) if carried else ""
        for name in carried.keys() & {decoder for _, decoder, _ in done}:
            if (path := folder.pool_path(name)).exists():
                load_state(carried[name], path, tokenizer_id=tokenizer_id)
        answers = Answers(self.task, self.examples, next(iter(self.decoders)), done)
        for example, name, repeat, order in missing:
            trees, recorder = self.record_trees is not False and repeat == 0, None
            decoder, failures = decoders[name], list[str]()
            if (trees or self.record_predictions) and not isinstance(decoder, Peer):
                decoder = recorder = Recorder(decoder)
            sample = self.measure(decoder, example, repeat, answers, on_error=failures.append)
            sample = replace(sample, decoder=name, order=order)
            done[sample.key] = sample
            for reason in failures:
                folder.append(FAILURES, {"traceback": reason}, sample.key)
            if recorder and self.record_predictions:
                folder.add_predictions(sample.key, recorder.predictions(sample.new_tokens))
            if recorder and trees:
                steps = recorder.trees()[: len(sample.steps)]
                proposed = [step.tree for step in steps if len(step.tree) > 1]
                if any(tree.probability or self.record_trees for tree in proposed):
                    folder.add_trees(sample.key, steps)
            folder.append(SAMPLES, sample.to_dict())
            if name in carried:
                save_state(carried[name], folder.pool_path(name), tokenizer_id=tokenizer_id)
            on_sample(sample)

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
        tokenizer, known, ttft_s = self.target.tokenizer, self.target.vocab_size, None
        try:
            asked = example if answers is None else answers.with_history(example, repeat)
            prompt = prompt_ids(tokenizer, asked)
            sample = replace(sample, prompt_tokens=len(prompt))
            check_ids(prompt, known, example.id)
            limits: dict[str, Any] = {"max_new": self.max_new, "eos": eos_ids(self.target)}
            limits["choose"] = self.sampling.choose(example.id, repeat, vocab=known)
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
            trace = trace if keep is None else cut(trace, keep)
            return replace(
                sample,
                **self.meter.stop(),
                new_tokens=tuple(trace.new_tokens),
                text=text_of(tokenizer, trace.new_tokens),
                finish=trace.finish,
                steps=tuple(trace.steps),
                ttft_s=ttft_s,
            )
        except Exception as error:
            reason = (str(error).strip() or "no message").splitlines()[0]
            on_error(without_paths("".join(traceback.format_exception(error))))
            return replace(sample, error=without_paths(f"{type(error).__name__}: {reason}"))

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
        start = max(0, self._seen - self._reach)
        if self._stops(new_tokens[start:]):
            ends = range(self._seen + 1, len(new_tokens) + 1)
            return next(end for end in ends if self._stops(new_tokens[start:end]))
        self._seen = len(new_tokens)
        return None

    def _stops(self, tokens: Sequence[int]) -> bool:
        text = text_of(self.tokenizer, tokens)
        return any(string in text for string in self.strings)


def text_of(tokenizer, tokens: Sequence[int]) -> str:
    """Return the exact text of tokens: no clean-up of spaces, no special tokens."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return tokenizer.decode(list(tokens), **options)
