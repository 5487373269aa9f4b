"""Measure seconds, peak device memory and energy of one sample."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pynvml
import torch

from ouroboros.engine.model import CachedModel


class Meter:
    """Measures from `start` to `stop` on all GPUs that hold parts of the models."""

    def __init__(self, models: Sequence[CachedModel]) -> None:
        devices = {weight.device for model in models for weight in model.model.parameters()}
        self.gpus = sorted((d for d in devices if d.type == "cuda"), key=lambda d: d.index or 0)
        self._cards: list = []  # by UUID: NVML and torch number the cards differently
        self._started = 0.0
        self._joules: float | None = None
        try:
            if self.gpus:
                pynvml.nvmlInit()
            for gpu in self.gpus:
                uuid = f"GPU-{torch.cuda.get_device_properties(gpu).uuid}"
                self._cards.append(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            self._cards = []

    def start(self) -> float:
        """Wait for earlier work and reset the peak memory; return the time in seconds."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        self._joules = self.energy_j()
        self._started = time.perf_counter()
        return self._started

    def stop(self) -> dict:
        """Wait for the GPUs; return `wall_s`, `peak_bytes` and `energy_j` since `start`. The last
        two are sums over GPUs; on a CPU they are None, because a peak is known per process only."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
        wall_s = time.perf_counter() - self._started
        before, after = self._joules, self.energy_j()
        return {
            "wall_s": wall_s,
            "peak_bytes": sum(torch.cuda.max_memory_allocated(gpu) for gpu in self.gpus) or None,
            "energy_j": None if before is None or after is None else after - before,
        }

    def energy_j(self) -> float | None:
        """Return the joules used by the GPUs since their driver was loaded; None if unknown.

        NVML measures the whole board, for all processes, about ten times a second; cards older than
        Volta have no counter.
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
        """
        try:
            counts = [pynvml.nvmlDeviceGetTotalEnergyConsumption(card) for card in self._cards]
        except pynvml.NVMLError:
            return None
        return sum(counts) / 1000 if counts else None  # NVML counts millijoules
