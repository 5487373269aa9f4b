"""Benchmarks. Imports run downwards in this order: tasks, metrics, run, replay, report."""
