"""Metrics: one registry entry each, computed from samples; the meter of time and memory."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
