"""Samples, and the metrics computed from them."""

from ouroboros.bench.metrics.metrics import METRICS as METRICS
