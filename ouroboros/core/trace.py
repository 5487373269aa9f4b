"""The record of a decoding run: counts and seconds of each step. `ouroboros.bench.metrics` computes
all metrics from these records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class StepRecord:
    """One step of the decoding loop, with one target call.

    Tokens:

    - `drafted`: depth of the deepest proposed branch
    - `scored`: nodes that the target scored, with the root and nodes that cannot be accepted
      (probes)
    - `accepted`: accepted draft tokens
    - `new`: tokens added (accepted + 1, or fewer if the output ends)
    - `sources`: for each new token, the source that proposed it. The target's own token is a
      "correction" if the draft continued differently, a "bonus" after a fully accepted draft,
      "target" without a draft

    Seconds (in joint calls of `rows` sequences, the step's time is divided equally among them):

    - `draft_s`, `verify_s`: draft and target calls, until the results are on the host
    - `host_s`: the rest of the step
    - `wait_s`: the part of `draft_s` and `verify_s` spent waiting for results (on a CPU only token
      selection)

    Calls:

    - `draft_calls`: draft calls; `draft_scored`: the nodes of all draft calls; `draft_caught_up`:
      the uncached sequence tokens fed before these nodes
    - `target_forwards`, `draft_forwards`: forward passes, of which a call may take several (0 in
      older records)
    """

    drafted: int = 0
    scored: int = 0
    accepted: int = 0
    new: int = 0
    draft_calls: int = 0
    sources: tuple[str, ...] = ()
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    wait_s: float = 0.0
    draft_scored: int = 0
    draft_caught_up: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    rows: int = 1


@dataclass
class DecodeTrace:
    """The tokens of a run, prompt first, and a record of each step; it grows while streaming.

    `prompt_len` counts prompt tokens; `finish` is "eos", "length", "context" or, after `cut`,
    "stop". The first step's times include the prefill.
    """

    tokens: list[int]
    prompt_len: int
    steps: list[StepRecord] = field(default_factory=list)
    finish: str = "length"

    @property
    def new_tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_len :]


def first_mismatch(ours: Sequence, theirs: Sequence) -> int | None:
    """Return the first index at which two sequences differ or one ends; None if they are equal.

    >>> first_mismatch([1, 2, 3], [1, 2]), first_mismatch([1], [1])
    (2, None)
    """
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def cut(trace: DecodeTrace, keep: int, finish: str = "stop") -> DecodeTrace:
    """Return the trace truncated after `keep` new tokens, with `finish` as its end reason.

    The last step is recorded as if an end-of-sequence token had ended it: its last token counts as
    new, not as accepted.
    """
    steps, left = [], keep
    for step in trace.steps:
        if left <= 0:
            break
        if step.new > left:
            accepted = min(step.accepted, left - 1)
            step = replace(step, accepted=accepted, new=left, sources=step.sources[:left])
        steps.append(step)
        left -= step.new
    return DecodeTrace(trace.tokens[: trace.prompt_len + keep], trace.prompt_len, steps, finish)
