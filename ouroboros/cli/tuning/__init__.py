"""What `ouroboros tune` is made of: the search, and the file of those that were ended."""
