"""The meter measures seconds everywhere, memory and energy only if the device reports them."""

from types import SimpleNamespace

import pynvml
import pytest
import torch
from bench_models import tiny_pair

from ouroboros.bench.metrics.meter import Meter


@pytest.fixture
def meter_of(monkeypatch):
    """Return a function that makes a meter of models on fake GPUs, by their UUIDs."""
    millijoules = {"GPU-a": 5_000, "GPU-b": 700}

    def handle(uuid):
        if uuid not in millijoules:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def read(card):
        millijoules[card] += 250
        return millijoules[card]

    def made(uuids, *, silent=False, broken=False):
        def refuse(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        monkeypatch.setattr(pynvml, "nvmlInit", refuse if broken else lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
        name = "nvmlDeviceGetTotalEnergyConsumption"
        monkeypatch.setattr(pynvml, name, refuse if silent else read)
        cards = [SimpleNamespace(uuid=uuid) for uuid in uuids]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: cards[gpu.index])
        weights = [SimpleNamespace(device=torch.device("cuda", i)) for i in range(len(uuids))]
        return Meter([SimpleNamespace(model=SimpleNamespace(parameters=lambda: weights))])

    return made


def test_energy_is_summed_over_the_cards_in_joules(meter_of):
    meter = meter_of(["a", "b"])
    first, second = meter.energy_j(), meter.energy_j()
    assert first == pytest.approx(6.2) and second - first == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("uuids", "flaws"),
    [([], {}), (["a"], {"broken": True}), (["none"], {}), (["a"], {"silent": True})],
)
def test_unknown_energy_is_none(meter_of, uuids, flaws):
    assert meter_of(uuids, **flaws).energy_j() is None


def test_on_a_cpu_only_time_is_known():
    meter = Meter(tiny_pair())
    assert meter.start() > 0
    cost = meter.stop()
    assert cost.pop("wall_s") >= 0 and cost == {"peak_bytes": None, "energy_j": None}
