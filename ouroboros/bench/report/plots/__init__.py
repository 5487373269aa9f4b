"""Pictures of summaries, each a function that returns a figure, or None with nothing to draw.

Invariant: one look (`style`), readable at 900 pixels, and no two things told apart by colour alone.
"""
