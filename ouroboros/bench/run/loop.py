"""The run loop: every decoder on every prompt, in turn, so that a machine that becomes slower or
faster affects all decoders alike.

All decode the same `batch_size` prompts (with `refill`, `REFILLED` times as many) before the next
prompts begin, and the decoder that goes first rotates. Invariants:

- Nothing is kept between samples, except phrase pools if a decoder carries them between prompts.
- Each sample is written before the next step begins. A failure is recorded, and the run continues.
- A pool is saved after its sample's line, so it is never ahead of the samples.
- Later turns of a conversation continue the first decoder's answers.
- Every completion is truncated at its first stop string, which depends only on its tokens.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from typing import Any

import torch
from tqdm import tqdm

from ouroboros.bench.metrics.metrics import corpus_scores
from ouroboros.bench.metrics.sample import Sample, step_s
from ouroboros.bench.run.config import Sampling
from ouroboros.bench.run.folder import FAILURES, PROMPTS, SAMPLES, SCORES, ResultsFolder
from ouroboros.bench.run.identity import without_paths
from ouroboros.bench.run.prompts import Answers, PromptBuilder, check_ids
from ouroboros.bench.run.tree_recorder import Recorder
from ouroboros.bench.tasks.task import Example, Task
from ouroboros.core.detokenizer import StopStrings, text_of
from ouroboros.core.select import TokenSelector, argmax
from ouroboros.core.trace import DecodeTrace, StepRecord, cut
from ouroboros.costs import Costs
from ouroboros.decode import Decoding, begin, together
from ouroboros.decoder_factory import Decoder, DecoderFactory, Peer
from ouroboros.drafters.pool import load_state, save_state
from ouroboros.engine.model import CachedModel
from ouroboros.models import vocab
from ouroboros.models.vocab import eos_ids

WARM_UP = Example("warm-up", "def mean(values):\n    return sum(values) / len(values)\n\n\ndef me")
WARM_UP_TOKENS = 32
REFILLED = 4  # with `refill`, decoders alternate after this many times `batch_size` prompts


@dataclass
class Bench:
    """A run with everything loaded: models, task, decoders.

    The caches of all `models` are emptied before each batch; `costs` are those that decoders plan
    with. The other options are those of `RunConfig`. Raises `ValueError` for prompts that the
    tokenizer or the model cannot read, and for a `batch_size` above 1 that the task, a model or a
    decoder does not support.
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
    costs: Costs | None = None
    batch_size: int = 1
    refill: bool = False
    prompts: PromptBuilder = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.eos, weights = eos_ids(self.target), [m.model.parameters() for m in self.models]
        self.gpus = {w.device for w in chain(*weights) if w.device.type == "cuda"}
        tokenizer, known = self.target.tokenizer, self.target.vocab_size
        if self.prompts is None:
            self.prompts = PromptBuilder(tokenizer, getattr(self.task, "template_args", {}))
        for example in self.examples:
            if not example.follows and (example.messages or len(tokenizer) > known):
                check_ids(self.prompts.ids(example), known, example.id)
        if self.batch_size > 1 and (reason := self._why_one_by_one()):
            raise ValueError(f"batch_size={self.batch_size}: {reason}")

    def _why_one_by_one(self) -> str | None:
        """Return why batches are impossible, and the remedy; None if they are possible."""
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

    def batches(self) -> Iterator[tuple[str, int, int, Sequence[Example]]]:
        """Yield (decoder, repeat, order, examples) in the order of measurement; the list of
        decoders is rotated by one from each batch of examples to the next."""
        names = list(self.decoders)
        size = self.batch_size * (REFILLED if self.refill and self.batch_size > 1 else 1)
        for repeat in range(self.repeats):
            for start in range(0, len(self.examples), size):
                first = (start // size + repeat) % len(names)
                for order, name in enumerate([*names[first:], *names[:first]]):
                    yield name, repeat, order, self.examples[start : start + size]

    def run(self, folder: ResultsFolder) -> Iterator[Sample]:
        """Measure the samples that the folder lacks and those that failed; yield every sample,
        finished ones first.

        Each decoder decodes a fixed text as warm-up and is then rebuilt; one that carries a phrase
        pool between prompts continues from the pool saved in the folder.
        """
        saved = folder.load_prompts()
        self.prompts.texts |= saved
        done = {sample.key: sample for sample in folder.load_samples() if not sample.error}
        yield from list(done.values())
        missing = [
            (name, repeat, order, left)
            for name, repeat, order, examples in self.batches()
            if (left := [e for e in examples if (e.id, name, repeat) not in done])
        ]
        names = dict.fromkeys(name for name, *_ in missing)
        for model in self.models if missing else ():
            context = self.prompts.longest(self.examples) + self.max_new
            model.prepare(context, self.batch_size)
        short = replace(self, max_new=min(self.max_new, WARM_UP_TOKENS))
        for name in names:
            list(short.measured(self._made(name), [(WARM_UP, 0)] * self.batch_size))
        decoders = {name: self._made(name) for name in names}
        firsts: dict[str, Any] = {name: made[0] for name, made in decoders.items()}
        carried = {n: one for n, one in firsts.items() if getattr(one, "carries_state", False)}
        tokenizer_id = vocab.fingerprint(self.target.tokenizer) if carried else ""
        for name in carried.keys() & {decoder for _, decoder, _ in done}:
            if (path := folder.pool_path(name)).exists():
                load_state(carried[name], path, tokenizer_id=tokenizer_id)
        answers = Answers(self.task, self.examples, next(iter(self.decoders)), done)
        last = max((sample.batch for sample in done.values()), default=0)
        for number, (name, repeat, order, left) in enumerate(missing, start=last + 1):
            batch = [(example, repeat) for example in left]
            for row in self.measured(decoders[name], batch, answers, number=number):
                sample = replace(row.sample, decoder=name, order=order)
                done[sample.key] = sample
                if row.failure:
                    folder.append(FAILURES, {"traceback": row.failure}, sample.key)
                elif row.recorder is not None:
                    self._record(folder, sample, row.recorder)
                for key in self.prompts.texts.keys() - saved.keys():
                    saved[key] = self.prompts.texts[key]
                    folder.append(PROMPTS, {"messages": key, "prompt": saved[key]})
                folder.append(SAMPLES, sample.to_dict())
                if name in carried:
                    save_state(carried[name], folder.pool_path(name), tokenizer_id=tokenizer_id)
                yield sample

    def _peak_bytes(self) -> int | None:
        """Return the peak memory of the batch, summed over the models' GPUs; None on a CPU."""
        return sum(map(torch.cuda.max_memory_allocated, self.gpus)) or None

    def _made(self, name: str) -> list[Decoder]:
        """Return `batch_size` new decoders `name`, one for each sequence of a batch."""
        return [self.decoders[name]() for _ in range(self.batch_size)]

    def _record(self, folder: ResultsFolder, sample: Sample, recorder: Recorder) -> None:
        """Write a sample's predictions, if the run records them, and in the first repeat its
        trees, if they have node probabilities or the run records predictions."""
        if self.record_predictions:
            folder.add_predictions(sample.key, recorder.predictions(sample.new_tokens))
        steps = recorder.trees()[: len(sample.steps)]
        trees = [step.tree for step in steps if len(step.tree) > 1 and sample.repeat == 0]
        if any(tree.probability or self.record_predictions for tree in trees):
            folder.add_trees(sample.key, steps)

    def measured(
        self,
        decoders: Sequence[Decoder],
        batch: Sequence[tuple[Example, int]],
        answers: Answers | None = None,
        *,
        number: int = 0,
    ) -> Iterator[Row]:
        """Decode (example, repeat) pairs as a batch, with empty caches and one decoder per
        sequence; yield each row as soon as it ends, a failure as the `error` of its sample.

        Later turns of a conversation need `answers`. `number` is the batch's number. Time that the
        caller takes between two yields, to write samples, is not counted.
        """
        rows, tokenizer, known = list[Row](), self.target.tokenizer, self.target.vocab_size
        size = self.batch_size
        shared: Any = {"batch_size": size, "batch": number if size > 1 else 0}
        for example, repeat in batch:
            sample = Sample(example.id, "", repeat, 0, 0, group=example.group, **shared)
            row = Row(sample)
            try:
                asked = example if answers is None else answers.with_history(example, repeat)
                row.prompt = self.prompts.ids(asked)
                row.note(prompt_tokens=len(row.prompt))
                check_ids(row.prompt, known, example.id)
                if len(row.prompt) > self.target.max_len:
                    limit = f"{len(row.prompt)} tokens, the model's context {self.target.max_len}"
                    raise ValueError(f"the prompt has {limit}: shorten the prompt")
                row.choose = self.sampling.choose(example.id, repeat, vocab=known)
                row.stop = StopStrings(tokenizer, self.task.stop, after=row.prompt)
                rows.append(row)
            except Exception as error:
                yield row.fail(error)
        for model in self.models:
            model.empty()
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        limits = {"max_new": self.max_new, "eos": self.eos}
        method = self._by_peer if isinstance(decoders[0], Peer) else self._together
        yield from method(decoders, rows, limits)

    def _together(
        self, decoders: Sequence[Any], rows: Sequence[Row], limits: dict
    ) -> Iterator[Row]:
        """Decode rows with this engine, in joint steps; yield each as soon as it ends."""
        free, live, clock, refused = list(decoders), dict[Decoding, Row](), 0.0, list[Row]()

        def begun() -> Iterator[Decoding]:
            for row in rows:
                row.recorder = Recorder(free[-1])
                row.note(began_s=clock)
                try:
                    how = {"choose": row.choose, **limits}
                    own = begin(self.target, row.recorder, row.prompt, **how)
                except Exception as error:
                    refused.append(row.fail(error))
                    continue
                free.pop()
                live[own] = row
                yield own

        options: dict = {"refill": self.refill, "on_error": lambda own, e: live[own].fail(e)}
        steps = together(begun(), self.batch_size, **options)
        while True:
            started = time.perf_counter()
            stepped = next(steps, [])
            for own in stepped:
                row = live[own]
                row.keep = row.stop(own.trace.new_tokens)
                if row.keep is not None:
                    own.left = 0
            seconds = time.perf_counter() - started
            clock += seconds
            sound = [own for own in stepped if not live[own].failure]
            for own in sound:
                live[own].add(seconds / len(sound), own.trace.steps)
            yield from refused
            refused.clear()
            for own in [own for own in stepped if own.left <= 0]:
                row = live.pop(own)
                free.append(row.recorder.drafter)
                if not row.failure:
                    row.note(ended_s=clock)
                    row.complete(own.trace, self.target.tokenizer, self._peak_bytes())
                yield row
            if not stepped:
                return

    def _by_peer(self, decoders: Sequence[Any], rows: Sequence[Row], limits: dict) -> Iterator[Row]:
        """Decode rows with another engine, a batch at a time; yield each after its batch."""
        peer, clock = decoders[0], 0.0
        for at in range(0, len(rows), self.batch_size):
            group = rows[at : at + self.batch_size]
            started = time.perf_counter()
            try:
                traces = peer.run(
                    self.target,
                    [row.prompt for row in group],
                    chooses=[row.choose for row in group],
                    stops=[row.stop for row in group],
                    **limits,
                )
            except Exception as error:
                yield from [row.fail(error) for row in group]
                continue
            wall_s = time.perf_counter() - started
            own_s = [[step_s(step) for step in trace.steps] for trace in traces]
            rest_s = wall_s - sum(map(sum, own_s))
            for row, trace, seconds in zip(group, traces, own_s, strict=True):
                stop = StopStrings(self.target.tokenizer, self.task.stop, after=row.prompt)
                row.keep = stop(trace.new_tokens)
                row.wall_s = sum(seconds) + rest_s / len(group)
                row.ttft_s = seconds[0] if seconds else None
                latency_s = rest_s + sum(step.rows * step_s(step) for step in trace.steps)
                row.note(began_s=clock, ended_s=clock + latency_s)
                yield row.complete(trace, self.target.tokenizer, self._peak_bytes())
            clock += wall_s

    def score(self, folder: ResultsFolder, record: dict, *, progress: bool = False) -> str | None:
        """Score the folder's samples that have no score yet, and the corpora, in its `record`
        (run.json); equal completions of a prompt are scored once. Return the first error in one
        line, or None; completions with errors get no score."""
        known: dict[tuple[str, str], dict[str, float]] = {}
        examples, done = {example.id: example for example in self.examples}, folder.load_scores()
        failure, samples = None, folder.load_samples()
        for sample in tqdm(samples, desc="scoring", leave=False, disable=not progress):
            if sample.error or sample.key in done:
                continue
            completion = (sample.example, sample.text)
            if completion not in known:
                try:
                    found = self.task.score(examples[sample.example], sample.text)
                    known[completion] = {name: float(value) for name, value in found.items()}
                    if unknown := [n for n, v in known[completion].items() if not isfinite(v)]:
                        raise ValueError(f"the score {unknown[0]} is no finite number")
                except Exception as error:
                    known[completion] = {}
                    failure = failure or f"{sample.example}: {in_one_line(error)}"
            if scores := known[completion]:
                key = dict(zip(("example", "decoder", "repeat"), sample.key, strict=True))
                folder.append(SCORES, {**key, "scores": scores})
        try:
            record["corpus_scores"] = corpus_scores(self.task, self.examples, samples)
        except Exception as error:
            failure = failure or in_one_line(error)
        return failure


@dataclass(eq=False)
class Row:
    """A prompt in a batch: its sample so far, its decoder and its outcome.

    `recorder` wraps the decoder if it is one of this engine's; else None. `keep` is the number of
    new tokens up to the first stop string (None: none so far), `failure` the traceback of a
    failure.
    """

    sample: Sample
    prompt: Sequence[int] = ()
    stop: Callable[[Sequence[int]], int | None] = lambda new_tokens: None
    choose: TokenSelector = argmax
    recorder: Any = None
    keep: int | None = None
    wall_s: float = 0.0
    ttft_s: float | None = None
    failure: str = ""

    def note(self, **fields: Any) -> None:
        """Set fields of the sample."""
        self.sample = replace(self.sample, **fields)

    def add(self, seconds: float, steps: list[StepRecord]) -> None:
        """Add the row's share of one step's time, and set the TTFT after the first step. The
        host time of the last of `steps` becomes all time outside the models, so that it includes
        preparing the sequence and searching for stop strings."""
        if steps:
            last = steps[-1]
            steps[-1] = replace(last, host_s=seconds - last.draft_s - last.verify_s)
        self.wall_s += seconds
        self.ttft_s = self.wall_s if self.ttft_s is None else self.ttft_s

    def fail(self, error: Exception) -> Row:
        """Record an error in the sample; return the row."""
        self.failure = without_paths("".join(traceback.format_exception(error)))
        self.note(error=in_one_line(error))
        return self

    def complete(self, trace: DecodeTrace, tokenizer, peak_bytes: int | None) -> Row:
        """Record the trace, truncated to `keep` new tokens, in the sample; return the row."""
        trace = trace if self.keep is None else cut(trace, self.keep)
        words = trace.new_tokens[: -1 if trace.finish == "eos" else None]
        self.note(
            new_tokens=tuple(trace.new_tokens),
            text=text_of(tokenizer, words, after=self.prompt),
            finish=trace.finish,
            steps=tuple(trace.steps),
            wall_s=self.wall_s,
            ttft_s=self.ttft_s,
            peak_bytes=peak_bytes,
        )
        return self


def in_one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message, without paths."""
    reason = (str(error).strip() or "no message").splitlines()[0]
    return without_paths(f"{type(error).__name__}: {reason}")
