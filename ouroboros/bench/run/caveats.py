"""What is to be known of a run's figures before it begins, a line each."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ouroboros.bench.metrics.sample import PLAIN
from ouroboros.bench.run.loop import Bench
from ouroboros.bench.run.provenance import machine

WITHOUT_PLAIN = (
    f"without {PLAIN} among decoder=[...] there is no speedup and no verdict on losslessness"
)
SLOW_ROWS = (
    "float32 on an AMD processor: calls of one to three nodes take longer than of four, so "
    "that ratios over greedy flatter; model.dtype=bfloat16 has no such step"
)


def caveats(job: Bench, *, timing: bool) -> Iterator[str]:
    """Yield the lines; `timing`: whether the run goes by the clock."""
    if PLAIN not in job.decoders:
        yield WITHOUT_PLAIN
    on_cpu = job.target.device.type == "cpu" and job.target.dtype == torch.float32
    if timing and on_cpu and "AMD" in str(machine()["cpu"]):
        yield SLOW_ROWS  # MKL takes each of so few rows by itself there
