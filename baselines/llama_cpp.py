"""llama.cpp as a peer, with the same weights, traced and timed like our decoders.

Needs the optional package llama-cpp-python and weights written by `scripts/save_standin.py --gguf`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from ouroboros.baselines.hf import Stop, timed_steps

from ouroboros.core.select import TokenSelector, argmax
from ouroboros.core.trace import DecodeTrace
from ouroboros.engine.model import CachedModel


class LlamaCpp:
    """llama.cpp's greedy generation from the GGUF file at `path`. With `lookup` above 0, the Python
    binding's prompt lookup drafts up to that many tokens a step; the binding has no other drafter.

    The whole time of a step counts as verification. Raises `ValueError` if the package or the file
    is missing.
    """

    def __init__(self, path: str | None, lookup: int = 0) -> None:
        try:
            from llama_cpp import Llama
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
        except ImportError as error:
            raise ValueError(
                f"llama.cpp needs its Python binding ({error}): pip install llama-cpp-python"
            ) from error
        if not path or not Path(path).is_file():
            raise ValueError(
                f"decoder.llama_cpp.path={path} is not a file: write one with "
                "scripts/save_standin.py --gguf"
            )
        threads = torch.get_num_threads()
        self._lookup = LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None
        self._drafts: list[float] = []  # when each step but the first began to draft
        draft: Any = self._draft if lookup else None
        self._llama = Llama(
            path,
            n_ctx=0,
            n_threads=threads,
            n_threads_batch=threads,
            draft_model=draft,
            verbose=False,
        )

    def _draft(self, input_ids, **options):
        """Draft the continuation of `input_ids`; record the time in `_drafts`."""
        self._drafts.append(time.perf_counter())
        return self._lookup(input_ids, **options)

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
        """Generate for a single prompt; see `Peer`. The rules for ending are those of `decode`.
        Only the context length of `target` is used. Raises `ValueError` for a selector other than
        `argmax`."""
        (prompt,), (choose,), (stop,) = prompts, chooses, stops
        if choose is not argmax:
            raise ValueError("llama.cpp runs at temperature 0 only, since its sampler differs")
        room = target.max_len - len(prompt) + 1
        cramped, max_new = room < max_new, min(max_new, room)
        trace = DecodeTrace(list(prompt), len(prompt))
        arrivals: list[tuple[float, int]] = []
        self._llama.reset()  # drops the cache of the previous prompt
        self._drafts.clear()
        started = time.perf_counter()
        for token in self._llama.generate(list(prompt), temp=0.0, top_k=1, repeat_penalty=1.0):
            new_step = self._lookup is None or len(arrivals) <= len(self._drafts)
            earlier = 0 if new_step else arrivals.pop()[1]
            arrivals.append((time.perf_counter(), earlier + 1))
            trace.tokens.append(int(token))
            keep = stop(trace.new_tokens) if stop is not None else None
            if keep is not None:
                trace.tokens, trace.finish = trace.tokens[: len(prompt) + keep], "stop"
            elif token in eos:
                trace.finish = "eos"
            if trace.finish in ("stop", "eos") or len(trace.new_tokens) == max_new:
                break
        if cramped and trace.finish not in ("stop", "eos"):
            trace.finish = "context"
        trace.steps = timed_steps(arrivals, started)
        return [trace]
