"""Metrics of samples, each one registry entry; seconds, memory and joules of one sample."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
