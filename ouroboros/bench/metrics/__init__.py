"""Metrics: one registry entry each, computed from samples; the meter of time, memory and energy."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
