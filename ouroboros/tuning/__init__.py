"""Predict the speed of decoders from counts and costs, and search for the best settings."""
