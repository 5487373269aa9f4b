"""`Sample`: one measured completion. The run loop writes samples, one line each.

`sample_frame` and `step_frame` turn them into tables, from which all metrics are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import index

import numpy as np
import pandas as pd

from ouroboros.core.trace import StepRecord
from ouroboros.costs import CostModel

PLAIN, METHOD = "greedy", "ouroboros"
"""The decoders that others are compared with, by their names in a run."""
COST_RATIO = 0.176
"""Default cost of a draft call in target calls, for runs that do not record it: Yi-6B's weight
bytes / Yi-34B's, the pair of the published results."""


@dataclass(frozen=True)
class Sample:
    """One prompt, decoded once by one decoder.

    `order` is the decoder's turn on this prompt (0 went first). `finish` is "eos", "length",
    "context", "stop" or "error". `wall_s` is the time from the call to the last kept token,
    `ttft_s` to the end of the first step; both include the prefill. `ttft_s` and `peak_bytes`
    (device memory) are None if unknown. A failed sample has the reason in `error` and no tokens.
    `group` is the prompt's category or "".

    With a `batch_size` above 1, `wall_s` and `ttft_s` are the sample's share of the batch's time:
    the sum of each step's seconds / its number of sequences. The sample was decoded from `began_s`
    to `ended_s`, in seconds since its batch began; `batch` is the number of this batch in the run.
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
    group: str = ""
    batch_size: int = 1
    batch: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def key(self) -> tuple[str, str, int]:
        """The sample's unique key in its run: example, decoder, repeat."""
        return self.example, self.decoder, self.repeat

    def to_dict(self) -> dict:
        """Return the fields as plain JSON values for `from_dict`, plus "speculative_decoding", an
        `acceptance_record`."""
        return {**asdict(self), "speculative_decoding": acceptance_record(self.steps)}

    @classmethod
    def from_dict(cls, data: dict) -> Sample:
        """Rebuild a sample from its `to_dict`. Raises `KeyError` or `TypeError` for other data."""
        data = {key: value for key, value in data.items() if key != "speculative_decoding"}
        steps = tuple(StepRecord(**{**s, "sources": tuple(s["sources"])}) for s in data["steps"])
        return cls(**{**data, "new_tokens": tuple(map(index, data["new_tokens"])), "steps": steps})


def sample_frame(
    samples: Iterable[Sample], costs: CostModel | None = None, draft_cost: float = COST_RATIO
) -> pd.DataFrame:
    """Return a row per completion, indexed by example, repeat and batch size, so that completions
    of different batch sizes are never paired. `draft_cost` is a draft call's cost in target calls.

    Columns in addition to the sample's fields:

    - `tokens`: the number of new tokens
    - `decode_s` and `decode_tokens`: seconds and tokens after the first step (NaN and 0 if the
      time of the first step is unknown)
    - `latency_s`: the time that a user waits. `ttft_s` is converted to a user's time too; `wall_s`
      and `decode_s` remain shares of a batch's time
    - `calls`: target calls + `draft_cost` x draft calls, counted in forward passes if recorded
    - `predicted_s`, `predicted_decode_s` (after the first step, with the measured host time if the
      costs have none) and `cost` (in target calls of one node): predicted with `costs`; NaN in all
      rows if `costs` is None or lacks the draft that was called, or if there are batches
    """
    samples = list(samples)
    frame = pd.DataFrame([*map(vars, samples)], columns=list(Sample.__annotations__))
    frame = frame.astype(dict.fromkeys(("wall_s", "ttft_s", "peak_bytes"), float))
    frame["tokens"] = [len(s.new_tokens) for s in samples]
    frame["decode_s"] = frame["wall_s"] - frame["ttft_s"]
    first = [s.steps[0].new if s.steps and s.ttft_s is not None else None for s in samples]
    frame["decode_tokens"] = (frame["tokens"] - pd.Series(first, dtype=float)).fillna(0)
    frame["ttft_s"] *= [s.steps[0].rows if s.steps else 1 for s in samples]
    alone = frame["batch_size"] == 1
    frame["latency_s"] = frame["wall_s"].where(alone, frame["ended_s"] - frame["began_s"])
    frame["calls"] = [
        sum(t.target_forwards or 1 for t in s.steps)
        + draft_cost * sum(t.draft_forwards or t.draft_calls for t in s.steps)
        for s in samples
    ]
    frame[["predicted_s", "predicted_decode_s", "cost"]] = float("nan")
    if costs is not None and alone.all():  # costs are for calls of a single sequence
        with suppress(ValueError):
            predicted = [costs.predict(sample) for sample in samples]
            frame["predicted_s"] = [sample.wall_s for sample in predicted]
            frame["predicted_decode_s"] = [s.wall_s - (s.ttft_s or 0.0) for s in predicted]
            if not costs.costs.host_ms:
                host_s = [sum(step.host_s for step in sample.steps[1:]) for sample in samples]
                frame["predicted_decode_s"] += host_s
            frame["cost"] = [costs.cost(sample) for sample in samples]
    return frame.set_index(["example", "repeat", "batch_size"])


def step_frame(samples: Iterable[Sample]) -> pd.DataFrame:
    """Return a row per step: `decoder`, `number` (0 is the first step of a completion), `s` (the
    step's seconds) and the fields of `StepRecord`."""
    rows = [
        {"decoder": sample.decoder, "number": number, "s": step_s(step), **vars(step)}
        for sample in samples
        for number, step in enumerate(sample.steps)
    ]
    types = {name: kind for name, kind in StepRecord.__annotations__.items() if name != "sources"}
    columns = ["decoder", "number", "s", *types, "sources"]
    return pd.DataFrame(rows, columns=columns).astype({"number": int, "s": float, **types})


def acceptance_record(steps: Sequence[StepRecord]) -> dict | None:
    """Return the acceptance of steps with the keys of vLLM's per-request records
    (`metrics.speculative_decoding` of its responses; see vLLM's page "Per-Request Acceptance
    Metrics"); None if no step had a draft.

    Steps without a draft are left out. A step's draft tokens are those of its deepest branch; entry
    k of a histogram counts the steps that accepted k of them. `num_spec_tokens` is the longest
    draft.

    >>> steps = [StepRecord(2, 3, 2, 3, 1, (), 0, 0, 0), StepRecord(4, 5, 0, 1, 1, (), 0, 0, 0)]
    >>> acceptance_record(steps)["acceptance_histogram_by_draft_length"]
    {2: [0, 0, 1], 4: [1, 0, 0, 0, 0]}
    """
    pairs = [(step.drafted, step.accepted) for step in steps if step.drafted]
    if not pairs:
        return None
    drafted, accepted = np.array(pairs).T

    def histogram(chosen: np.ndarray, length: int) -> list[int]:
        return np.bincount(chosen.clip(max=length), minlength=length + 1).tolist()

    longest, total = int(drafted.max()), int(drafted.sum())
    return {
        "mean_acceptance_length": 1 + int(accepted.sum()) / len(pairs),
        "draft_acceptance_rate": int(accepted.sum()) / total,
        "acceptance_histogram": histogram(accepted, longest),
        "acceptance_histogram_by_draft_length": {
            length: histogram(accepted[drafted == length], length)
            for length in np.unique(drafted).tolist()
        },
        "num_spec_steps": len(pairs),
        "num_accepted_draft_tokens": int(accepted.sum()),
        "num_draft_tokens": total,
        "num_spec_tokens": longest,
    }


def step_s(step: StepRecord) -> float:
    """Return a step's seconds: the sum of draft, target and host."""
    return step.draft_s + step.verify_s + step.host_s
