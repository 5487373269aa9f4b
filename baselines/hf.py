"""transformers' `generate` as a peer, traced and timed like our decoders.

It uses the same model, attention kernel, prompt, token selection and stopping rules as our
decoders, but transformers' loop and cache. Tests of equality compare with its greedy generation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Literal

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from ouroboros.core.processors import Processed
from ouroboros.core.select import Sampler, TokenSelector, argmax
from ouroboros.core.trace import DecodeTrace, StepRecord, cut
from ouroboros.engine.model import CachedModel

Stop = Callable[[list[int]], int | None]
LOG = logging.getLogger("transformers.generation.utils")


def not_own_deprecation(record: logging.LogRecord) -> bool:
    """Return False for the deprecation warning about transformers' own calls of its assistant."""
    return "Passing `generation_config` together" not in record.getMessage()


class SharedNoise(LogitsProcessor):
    """Logits processor whose argmax is a `Sampler`'s token. The softmax of the result gives this
    token its probability without noise, which transformers' confidence threshold reads."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        vocab, warped = scores.shape[-1], self.sampler.warped(scores)
        noise = self.sampler.noise(input_ids.shape[-1], vocab, scores.device)
        token = (warped + noise).argmax(-1, keepdim=True)
        # above 1 / vocab, so that this token has the highest score
        probability = warped.softmax(-1).gather(-1, token).clamp(min=2 / vocab)
        rest = ((1 - probability) / (vocab - 1)).log()
        return rest.expand_as(warped).scatter(-1, token, probability.log())


def as_processors(choose: TokenSelector) -> LogitsProcessorList:
    """Return logits processors that make transformers' greedy generation choose the same tokens as
    `choose`: `argmax`, a `Sampler` or `Processed`. Raises `ValueError` for other selectors."""
    if choose is argmax:
        return LogitsProcessorList()
    if isinstance(choose, Sampler):
        return LogitsProcessorList([SharedNoise(choose)])
    if isinstance(choose, Processed):
        return LogitsProcessorList([*choose.processors, *as_processors(choose.choose)])
    raise ValueError("transformers' generation takes only argmax, a Sampler or processors")


class Arrivals(BaseStreamer):
    """Streamer that records when new tokens arrive, as (time.perf_counter(), count) pairs."""

    def __init__(self) -> None:
        self.at: list[tuple[float, int]] = []
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.at.append((time.perf_counter(), value.numel()))
        self._prompt_seen = True

    def end(self) -> None:
        """Do nothing: no text is buffered."""


class StopWhen(StoppingCriteria):
    """Stopping criterion that ends row i when `stops[i]` returns a number for its new tokens, or
    when it has `rooms[i]` new tokens."""

    def __init__(self, stops: Sequence[Stop | None], rooms: Sequence[int], width: int) -> None:
        self.stops, self.rooms, self.width = stops, rooms, width

    def __call__(self, input_ids: torch.LongTensor, scores, **kwargs) -> torch.Tensor:  # type: ignore[override]
        rows = zip(input_ids[:, self.width :].tolist(), self.stops, self.rooms, strict=True)
        done = [len(new) >= room or (stop and stop(new)) is not None for new, stop, room in rows]
        return torch.tensor(done, device=input_ids.device)


class ByRow(LogitsProcessor):
    """Logits processor that applies each row's own processors, to its ids without left padding."""

    def __init__(self, processors: Sequence[LogitsProcessorList], pads: Sequence[int]) -> None:
        self.rows = list(zip(processors, pads, strict=True))

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        pairs = zip(self.rows, input_ids, scores, strict=True)
        return torch.cat(
            [process(ids[None, pad:], row[None]) for (process, pad), ids, row in pairs]
        )


class HFGenerate:
    """`model.generate` in one of three modes.

    - "greedy"
    - "assisted": needs `draft`; `settings` are the assistant's generation settings, such as
      num_assistant_tokens, num_assistant_tokens_schedule and assistant_confidence_threshold
    - "prompt_lookup": `settings` are prompt_lookup_num_tokens and max_matching_ngram_size

    The whole time of a step counts as verification, since transformers does not report drafting
    separately.
    """

    def __init__(
        self,
        mode: Literal["greedy", "assisted", "prompt_lookup"] = "greedy",
        draft: CachedModel | None = None,
        **settings,
    ) -> None:
        if mode not in ("greedy", "assisted", "prompt_lookup"):
            raise ValueError(f"mode {mode!r} is not one of greedy, assisted, prompt_lookup")
        if mode == "assisted" and draft is None:
            raise ValueError("assisted generation needs a draft model")
        if mode == "prompt_lookup" and not settings.get("prompt_lookup_num_tokens"):
            raise ValueError("prompt_lookup needs prompt_lookup_num_tokens, or it decodes greedily")
        known = GenerationConfig().to_dict()
        if wrong := [name for name in settings if name not in known]:
            raise ValueError(f"transformers has no generation setting {', '.join(wrong)}")
        self.mode = mode
        self.draft = draft if mode == "assisted" else None
        self.settings = settings
        self.joins_rows = mode == "greedy"

    def run(
        self,
        target: CachedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new: int,
        eos: Collection[int] = (),
        chooses: Sequence[TokenSelector],
        stops: Sequence[Stop | None],
    ) -> list[DecodeTrace]:
        """Generate for a left-padded batch of prompts; see `Peer`. The rules for ending are those
        of `decode`. Only greedy generation takes more than one prompt.

        Rows that have ended are fed padding until all have ended. A step's time is divided equally
        among the unfinished rows.
        """
        width = max(map(len, prompts))
        pads = [width - len(prompt) for prompt in prompts]
        rooms = [min(max_new, target.max_len - len(prompt) + 1) for prompt in prompts]
        arrivals = Arrivals()
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        options: dict = {"streamer": arrivals}
        if any(processors := list(map(as_processors, chooses))):
            options["logits_processor"] = LogitsProcessorList([ByRow(processors, pads)])
        if any(stops) or len(set(rooms)) > 1:
            options["stopping_criteria"] = StoppingCriteriaList([StopWhen(stops, rooms, width)])
        if self.draft is not None:
            options["assistant_model"] = self.draft.untrimmed
        config = GenerationConfig(
            max_new_tokens=max(rooms),
            do_sample=False,
            eos_token_id=sorted(eos) or target.vocab_size,  # an id that never occurs
            pad_token_id=0,
            **(self.settings if self.mode == "prompt_lookup" else {}),
        )
        with ExitStack() as stack:

            def set_config(model: PreTrainedModel, config: GenerationConfig) -> None:
                stack.callback(setattr, model, "generation_config", model.generation_config)
                model.generation_config = config

            # our decoders do not use the model's default settings, such as a repetition penalty
            set_config(target.model, GenerationConfig())
            calls: list[float] = []  # start times of draft calls
            if self.draft is not None:
                assistant = self.draft.untrimmed
                LOG.addFilter(not_own_deprecation)
                stack.callback(LOG.removeFilter, not_own_deprecation)
                settings = GenerationConfig.from_dict(assistant.generation_config.to_dict())
                for name, value in {"is_assistant": True, **self.settings}.items():
                    setattr(settings, name, value)
                set_config(assistant, settings)
                hook = assistant.register_forward_pre_hook(
                    lambda *_: calls.append(time.perf_counter())
                )
                stack.callback(hook.remove)
            for own in (target, self.draft):
                if own is not None:  # as fast on a CPU as in our own calls by modules
                    stack.enter_context(own.engine.packed.used())
            started = time.perf_counter()
            out = target.model.generate(
                torch.tensor(ids, device=target.device),
                attention_mask=torch.tensor(mask, device=target.device),
                generation_config=config,
                **options,
            )
        traces = []
        for row, prompt, room, stop in zip(
            out[:, width:].tolist(), prompts, rooms, stops, strict=True
        ):
            new = row[: next((n for n, token in enumerate(row[:room], 1) if token in eos), room)]
            trace = DecodeTrace([*prompt, *new], len(prompt))
            keep = stop(new) if stop is not None else None
            if keep is not None:
                trace.tokens, trace.finish = trace.tokens[: len(prompt) + keep], "stop"
            elif trace.tokens[-1] in eos:
                trace.finish = "eos"
            elif room < max_new:
                trace.finish = "context"
            traces.append(trace)
        if len(traces) == 1:
            trace.steps = timed_steps(arrivals.at, started, calls)
            return [cut(trace, len(trace.new_tokens), trace.finish)]
        for number, (at, _) in enumerate(arrivals.at):
            live = [trace for trace in traces if len(trace.new_tokens) > number]
            for trace in live:
                share_s, rows = (at - started) / len(live), len(live)
                trace.steps.append(StepRecord(new=1, sources=("",), verify_s=share_s, rows=rows))
            started = at
        return traces


def timed_steps(
    arrivals: Sequence[tuple[float, int]], started: float, calls: Sequence[float] = ()
) -> list[StepRecord]:
    """Return one `StepRecord` for each arrival of new tokens, a pair (time in seconds, number of
    tokens). `started` is when the first step began; `calls` are the start times of draft calls."""
    steps, before = [], started
    for at, new in arrivals:
        steps.append(
            StepRecord(
                accepted=new - 1,
                new=new,
                draft_calls=sum(before <= call < at for call in calls),
                sources=("",) * new,
                verify_s=at - before,
            )
        )
        before = at
    return steps
