"""Samples, the metrics computed from them, and the meter of time and memory."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
