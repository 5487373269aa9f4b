"""Predictions from counts and costs: time, memory, break-even, what-if."""
