"""What `ouroboros generate` is made of: a decoder at work, and how its text is shown."""
