"""What one decoding run did: counts per step and seconds per phase, nothing derived.

Every metric is computed from these records, in one place (`ouroboros.bench.metrics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True)
class StepRecord:
    """One step of the loop: one target call.

    `drafted` is the depth of the deepest proposed branch, `scored` the nodes that the target
    computed (root and probes included), `accepted` the draft tokens kept (without the bonus token)
    and `new` the tokens added (with it; fewer than accepted + 1 where the end was cut). `sources`
    names who proposed each new token; the target's own token is a "correction" where the draft
    continued otherwise, a "bonus" after a draft that matched to its end, else "target".

    `draft_s` are seconds in the draft model and `verify_s` in the target, each until its result
    arrives; `host_s` is the rest of the step, and `wait_s` the part of the time in both models that
    was spent waiting for results (on a CPU only the choice of tokens). `draft_scored` counts the
    nodes of all draft calls, `draft_caught_up` the tokens of the sequence fed before them. One call
    of a model may be several forwards: `target_forwards`, `draft_forwards` (0 in older records).

    A step that `rows` sequences took together is divided equally: seconds are its time / `rows`.
    """

    drafted: int
    scored: int
    accepted: int
    new: int
    draft_calls: int
    sources: tuple[str, ...]
    draft_s: float
    verify_s: float
    host_s: float
    wait_s: float = 0.0
    draft_scored: int = 0
    draft_caught_up: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    rows: int = 1


@dataclass
class DecodeTrace:
    """A finished (or, while streaming, growing) run: the tokens and a record of each step.

    `prompt_len` counts tokens; `finish` is "eos", "length" or "context" ("stop" after `cut`). The
    first step's times include the prefill.
    """

    tokens: list[int]
    prompt_len: int
    steps: list[StepRecord] = field(default_factory=list)
    finish: str = "length"

    @property
    def new_tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.prompt_len :]

    def to_dict(self) -> dict:
        """Return plain JSON values; `from_dict` restores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> DecodeTrace:
        """Rebuild a trace from `to_dict`'s values."""
        steps = [StepRecord(**{**s, "sources": tuple(s["sources"])}) for s in data["steps"]]
        return cls(data["tokens"], data["prompt_len"], steps, data["finish"])


def first_mismatch(ours: Sequence, theirs: Sequence) -> int | None:
    """Return the first index at which two sequences differ (the end of one counts), None if equal.

    >>> first_mismatch([1, 2, 3], [1, 2]), first_mismatch([1], [1])
    (2, None)
    """
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def cut(trace: DecodeTrace, keep: int, finish: str = "stop") -> DecodeTrace:
    """Return the trace as if the run had ended after `keep` new tokens.

    The step of the last kept token is shortened as by an end-of-sequence token: the last token
    counts as new, not as accepted.
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
