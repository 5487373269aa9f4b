"""The parts of `ouroboros evidence`."""
