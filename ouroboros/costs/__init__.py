"""What calls cost, as data: milliseconds by nodes and context, measured or from bandwidth."""
