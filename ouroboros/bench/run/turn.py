"""One turn of a run: a decoder on a prompt, by this engine or by another one of its own.

Invariant: what a stop string ends is cut where it ends, whoever decoded it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ouroboros.bench.run.stop import Stop, StopStrings
from ouroboros.decode import Drafter, stream
from ouroboros.engine.model import CachedModel
from ouroboros.select import TokenSelector
from ouroboros.trace import DecodeTrace, cut


class Peer(Protocol):
    """Another engine's generation under the same trace (transformers' own `generate`)."""

    def run(
        self,
        target: CachedModel,
        prompt: Sequence[int],
        *,
        max_new: int,
        eos: Collection[int],
        choose: TokenSelector,
        stop: Stop | None = None,
    ) -> DecodeTrace:
        """Return a finished run. It should end soon after `stop` says so; the rest is cut off."""
        ...


Decoder = Drafter | Peer
DecoderFactory = Callable[[], Decoder]


def decoded(
    target: CachedModel,
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    max_new: int,
    choose: TokenSelector,
    stop: Sequence[str],
    started: float,
) -> tuple[DecodeTrace, float | None]:
    """Return the trace, cut at the first of the `stop` strings, and the seconds from `started` (of
    `time.perf_counter`) to the end of the first step."""
    eos, ends = eos_ids(target), StopStrings(target.tokenizer, stop)
    if hasattr(decoder, "run"):
        trace = decoder.run(target, prompt, max_new=max_new, eos=eos, choose=choose, stop=ends)
        keep = StopStrings(target.tokenizer, stop)(trace.new_tokens)
        return (trace if keep is None else cut(trace, keep)), _first_step_s(trace)
    ttft_s: float | None = None
    for trace in stream(target, decoder, prompt, max_new=max_new, eos=eos, choose=choose):
        if ttft_s is None and trace.steps:
            ttft_s = time.perf_counter() - started
        keep = ends(trace.new_tokens)
        if keep is not None:
            return cut(trace, keep), ttft_s
    return trace, ttft_s


def eos_ids(model: CachedModel) -> frozenset[int]:
    """Return the model's end-of-sequence ids: generation config, else tokenizer, else none."""
    ids = getattr(getattr(model.model, "generation_config", None), "eos_token_id", None)
    if ids is None:
        ids = getattr(model.tokenizer, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def _first_step_s(trace: DecodeTrace) -> float | None:
    """Seconds of a peer's first step, which began with its call."""
    first = trace.steps[0] if trace.steps else None
    return None if first is None else first.draft_s + first.verify_s + first.host_s
