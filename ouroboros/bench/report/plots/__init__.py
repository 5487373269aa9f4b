"""Plots of runs: each function returns a figure, or None if there is nothing to draw.

All plots share one style, stay readable at 900 pixels, and never distinguish by colour alone. They
carry no title: a report captions them, and `style.with_title` titles a plot that stands alone.
"""
