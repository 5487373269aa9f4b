"""Benchmarks. Each package imports only from earlier ones: tasks, metrics, run, replay, report."""
