"""What `advise` consists of: its inputs, its search, and the check of its predictions."""
