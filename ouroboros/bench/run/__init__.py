"""One run: the loop over prompts and decoders, its folder, and what is recorded about it."""
