"""Measure seconds and peak device memory of one sample."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ouroboros.engine.model import CachedModel


class Meter:
    """Measures from `start` to `stop` on all GPUs that hold parts of the models."""

    def __init__(self, models: Sequence[CachedModel]) -> None:
        devices = {weight.device for model in models for weight in model.model.parameters()}
        self.gpus = sorted((d for d in devices if d.type == "cuda"), key=lambda d: d.index or 0)
        self._started = 0.0

    def start(self) -> float:
        """Wait for the GPUs, reset the peak memory and start the clock; return `perf_counter()`."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        self._started = time.perf_counter()
        return self._started

    def stop(self) -> dict:
        """Wait for the GPUs; return `wall_s` and `peak_bytes` since `start`. The peak is the sum
        over GPUs, or None on a CPU, where only the peak of the whole process is known."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
        wall_s = time.perf_counter() - self._started
        return {
            "wall_s": wall_s,
            "peak_bytes": sum(torch.cuda.max_memory_allocated(gpu) for gpu in self.gpus) or None,
        }
