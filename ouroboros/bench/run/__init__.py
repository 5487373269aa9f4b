"""Benchmark runs: the loop over prompts and decoders, the results folder, and the run's record."""
