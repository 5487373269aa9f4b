"""Metrics of samples, one registry entry each; the time, memory and energy of a sample."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
