"""Search for the best settings of each decoder, on recorded texts."""
