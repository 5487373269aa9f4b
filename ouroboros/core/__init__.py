"""Trees, token selection, records of a run, and helpers for configs, text and compiled code.

Nothing here imports another folder of the package.
"""
