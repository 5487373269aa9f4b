"""What one sample costs: seconds, device memory, energy.

Unavailable measurements are None: on a CPU energy, and memory, since the system keeps a peak for
the whole process only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pynvml
import torch

from ouroboros.engine.model import CachedModel


@dataclass(frozen=True)
class Cost:
    """`peak_bytes` and `energy_j` are sums over the GPUs in use."""

    wall_s: float
    peak_bytes: int | None
    energy_j: float | None


class Meter:
    """Measures from `start` to `stop` on every GPU that holds a part of the models."""

    def __init__(self, models: Sequence[CachedModel]) -> None:
        found = {weight.device for model in models for weight in model.model.parameters()}
        self.gpus = sorted((d for d in found if d.type == "cuda"), key=lambda d: d.index or 0)
        uuids = [torch.cuda.get_device_properties(gpu).uuid for gpu in self.gpus]
        self.energy = EnergyCounter([f"GPU-{uuid}" for uuid in uuids])  # NVML numbers otherwise
        self._started = 0.0
        self._joules: float | None = None

    def start(self) -> float:
        """Wait for earlier work, reset the peak of memory; return the time in seconds."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
        self._joules = self.energy.read_j()
        self._started = time.perf_counter()
        return self._started

    def stop(self) -> Cost:
        """Wait for the GPUs; return what was spent since `start`."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)
        wall_s = time.perf_counter() - self._started
        before, after = self._joules, self.energy.read_j()
        return Cost(
            wall_s,
            sum(torch.cuda.max_memory_allocated(gpu) for gpu in self.gpus) or None,
            None if before is None or after is None else after - before,
        )


class EnergyCounter:
    """Joules drawn by some GPUs since their driver was loaded, as NVML counts them.

    The count is the whole board's, for all its users, and is updated about ten times a second.
    Cards older than Volta have none.
    https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
    """

    def __init__(self, uuids: Sequence[str], nvml=pynvml) -> None:
        self._nvml = nvml
        self._handles: list = []
        if not uuids:
            return
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except nvml.NVMLError:
            self._handles = []

    def read_j(self) -> float | None:
        """Return the joules so far, summed; None where a GPU does not count them."""
        if not self._handles:
            return None
        try:
            counts = map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles)
            return sum(counts) / 1000  # NVML counts millijoules
        except self._nvml.NVMLError:
            return None
