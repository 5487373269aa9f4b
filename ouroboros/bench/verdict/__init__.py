"""The audit of a run's folder, and its words."""
