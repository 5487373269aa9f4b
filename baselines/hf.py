"""transformers' own generation as a peer, under the same trace and clock.

The model, its attention kernel, the prompt, the choice of tokens and the end conditions are those
of our decoders; the loop and the cache are transformers'. Greedy generation is also the oracle of
the equality tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

from ouroboros.engine.model import CachedModel
from ouroboros.processors import Processed
from ouroboros.select import Sampler, TokenSelector, argmax
from ouroboros.trace import DecodeTrace, StepRecord

Stop = Callable[[list[int]], int | None]


class SharedNoise(LogitsProcessor):
    """Add a `Sampler`'s noise, so that the argmax is its sample."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        row = self.sampler.noise(input_ids.shape[-1], scores.shape[-1], scores.device)
        return self.sampler.warped(scores) + row


def as_processors(choose: TokenSelector) -> LogitsProcessorList:
    """Return the logits processors under which transformers' argmax is this choice."""
    if choose is argmax:
        return LogitsProcessorList()
    if isinstance(choose, Sampler):
        return LogitsProcessorList([SharedNoise(choose)])
    if isinstance(choose, Processed):
        return LogitsProcessorList([*choose.processors, *as_processors(choose.choose)])
    raise ValueError("transformers' generation runs under argmax, a Sampler or processors only")


class Arrivals(BaseStreamer):
    """Record when new tokens arrive: (seconds, count) pairs, without the prompt."""

    def __init__(self) -> None:
        self.at: list[tuple[float, int]] = []
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.at.append((time.perf_counter(), value.numel()))
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing to flush."""


class StopWhen(StoppingCriteria):
    """End generation once `stop`, given the new tokens, returns a number."""

    def __init__(self, stop: Stop, prompt_len: int) -> None:
        self.stop = stop
        self.prompt_len = prompt_len

    def __call__(self, input_ids: torch.LongTensor, scores, **kwargs) -> torch.Tensor:  # type: ignore[override]
        done = self.stop(input_ids[0, self.prompt_len :].tolist()) is not None
        return torch.full((len(input_ids),), done, device=input_ids.device)


class HFGenerate:
    """`model.generate` in one of three modes.

    `greedy`; `assisted` (needs `draft`; `settings` are the assistant's generation settings, such as
    num_assistant_tokens, num_assistant_tokens_schedule and assistant_confidence_threshold, by
    default transformers' own); `prompt_lookup` (prompt_lookup_num_tokens, max_matching_ngram_size).
    A step's time counts as verification: transformers does not separate drafting from it.
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

    def run(
        self,
        target: CachedModel,
        prompt: Sequence[int],
        *,
        max_new: int,
        eos: Collection[int] = (),
        choose: TokenSelector = argmax,
        stop: Stop | None = None,
    ) -> DecodeTrace:
        """Generate under the same rules as `decode`; `stop` says how many new tokens to keep."""
        room = target.max_len - len(prompt) + 1
        cramped, max_new = room < max_new, min(max_new, room)
        arrivals = Arrivals()
        ids = torch.tensor([list(prompt)], device=target.device)
        options: dict = {"streamer": arrivals}
        options["logits_processor"] = as_processors(choose)
        if stop is not None:
            options["stopping_criteria"] = StoppingCriteriaList([StopWhen(stop, len(prompt))])
        if self.draft is not None:
            options["assistant_model"] = self.draft.model
        config = GenerationConfig(
            max_new_tokens=max_new,
            do_sample=False,
            eos_token_id=sorted(eos) or target.vocab_size,  # an id that never comes
            pad_token_id=0,
            **(self.settings if self.mode == "prompt_lookup" else {}),
        )
        with ExitStack() as stack:
            # the model's own defaults (say, a repetition penalty) apply to no other decoder
            stack.enter_context(_generation_config(target.model, GenerationConfig()))
            calls: list[float] = []  # the time of each draft call
            if self.draft is not None:
                assistant = self.draft.model
                own = GenerationConfig.from_dict(assistant.generation_config.to_dict())
                for name, value in {"is_assistant": True, **self.settings}.items():
                    setattr(own, name, value)
                stack.enter_context(_generation_config(assistant, own))
                hook = assistant.register_forward_pre_hook(
                    lambda *_: calls.append(time.perf_counter())
                )
                stack.callback(hook.remove)
            started = time.perf_counter()
            out = target.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **options
            )
        trace = DecodeTrace(out[0].tolist(), len(prompt))
        trace.steps = timed_steps(arrivals.at, started, calls, cut=max_new)
        keep = stop(trace.new_tokens) if stop is not None else None
        if keep is not None:
            trace.tokens, trace.finish = trace.tokens[: len(prompt) + keep], "stop"
        elif trace.tokens[-1] in eos:
            trace.finish = "eos"
        elif cramped:
            trace.finish = "context"
        return trace


@contextmanager
def _generation_config(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Replace a model's generation config for one run."""
    before, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = before


def timed_steps(
    arrivals: list[tuple[float, int]], started: float, calls: list[float], *, cut: int
) -> list[StepRecord]:
    steps, before, left = [], started, cut
    for at, count in arrivals:
        new = min(count, left)
        left -= new
        steps.append(
            StepRecord(
                drafted=0,
                scored=0,
                accepted=new - 1,
                new=new,
                draft_calls=sum(before <= call < at for call in calls),
                sources=("",) * new,
                draft_s=0.0,
                verify_s=at - before,
                host_s=0.0,
            )
        )
        before = at
    return steps
