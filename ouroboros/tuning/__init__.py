"""Predict decoders from counts and costs, and search their settings: advise, tune, what-if."""
