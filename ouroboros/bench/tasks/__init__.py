"""Tasks: prompts and the scores of completions, one file per task."""
