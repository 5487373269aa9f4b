"""Predict decoder speed from counts and costs, and search settings: advise, tune, what-if."""
