"""Seconds are measured everywhere; memory and energy only where they are known."""

import pytest
from bench_models import tiny_pair

from ouroboros.bench.metrics.meter import EnergyCounter, Meter


class FakeNVML:
    """Two cards, of which `silent` ones have no energy counter."""

    class NVMLError(Exception):
        """As NVML's own."""

    def __init__(self, silent=(), broken=False):
        self.silent, self.broken = silent, broken
        self.millijoules = {"GPU-a": 5_000, "GPU-b": 700}

    def nvmlInit(self):
        if self.broken:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.millijoules:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle in self.silent:
            raise self.NVMLError("not supported")
        self.millijoules[handle] += 250
        return self.millijoules[handle]


def test_energy_is_summed_over_the_cards_in_joules():
    counter = EnergyCounter(["GPU-a", "GPU-b"], nvml=FakeNVML())
    first, second = counter.read_j(), counter.read_j()
    assert first == pytest.approx(6.2) and second - first == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("uuids", "nvml"),
    [
        ([], FakeNVML()),
        (["GPU-a"], FakeNVML(broken=True)),
        (["GPU-none"], FakeNVML()),
        (["GPU-a", "GPU-b"], FakeNVML(silent=("GPU-b",))),
    ],
)
def test_unknown_energy_is_none(uuids, nvml):
    assert EnergyCounter(uuids, nvml=nvml).read_j() is None


def test_on_a_cpu_only_time_is_known():
    meter = Meter(tiny_pair())
    started = meter.start()
    cost = meter.stop()
    assert started > 0 and cost.wall_s >= 0
    assert cost.peak_bytes is None and cost.energy_j is None
