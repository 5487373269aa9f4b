"""Seconds are measured everywhere; memory only where it is known."""

from bench_models import tiny_pair

from ouroboros.bench.metrics.meter import Meter


def test_on_a_cpu_only_time_is_known():
    meter = Meter(tiny_pair())
    assert meter.start() > 0
    cost = meter.stop()
    assert cost.pop("wall_s") >= 0 and cost == {"peak_bytes": None}
