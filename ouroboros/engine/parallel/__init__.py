"""Score one token tree on several devices: cut it into parts, exchange the chosen tokens."""
