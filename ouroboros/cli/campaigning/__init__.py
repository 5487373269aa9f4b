"""What `campaign` consists of: its stages and their work."""
