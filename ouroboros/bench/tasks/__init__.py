"""What a benchmark is: examples in, prompts out, completions scored; one file a task."""
