"""Formulas and clocks: metrics of samples, intervals, seconds, memory, joules."""
