"""One measured completion: what the run loop writes, and the only thing a report reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ouroboros.trace import StepRecord

PLAIN, METHOD = "greedy", "ouroboros"
"""The decoders that others are compared with, by their names in a run."""


@dataclass(frozen=True)
class Sample:
    """One prompt, decoded once by one decoder.

    `order` is the decoder's place in this prompt's round (0 went first). `wall_s` runs from the
    call to the last kept token, `ttft_s` to the end of the first step; both include the prefill.
    `ttft_s`, `peak_bytes` (device memory) and `energy_j` (drawn by the GPUs meanwhile) are None
    where they are unknown. A failed run has its reason in `error` and no tokens. `group` is the
    prompt's category, "" where it has none.
    """

    example: str
    decoder: str
    repeat: int
    order: int
    prompt_tokens: int
    new_tokens: tuple[int, ...] = ()
    text: str = ""
    finish: str = "error"
    steps: tuple[StepRecord, ...] = ()
    wall_s: float = 0.0
    ttft_s: float | None = None
    peak_bytes: int | None = None
    error: str | None = None
    energy_j: float | None = None
    group: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes a sample unique in its run."""
        return self.example, self.decoder, self.repeat

    def to_dict(self) -> dict:
        """Return plain JSON values; `from_dict` restores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> Sample:
        """Rebuild a sample from `to_dict`'s values; `KeyError` or `TypeError` if they are not."""
        steps = tuple(StepRecord(**{**s, "sources": tuple(s["sources"])}) for s in data["steps"])
        return cls(**{**data, "new_tokens": tuple(data["new_tokens"]), "steps": steps})


def steps_of(samples: Iterable[Sample]) -> list[StepRecord]:
    """Return all steps of all samples."""
    return [step for sample in samples for step in sample.steps]


def step_s(step: StepRecord) -> float:
    """Return the seconds of a step: in both models and on the host."""
    return step.draft_s + step.verify_s + step.host_s
