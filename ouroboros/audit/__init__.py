"""Check that decoding is lossless: each completion is identical, a numeric tie or a BUG.

`audit` compares the completions of a prompt with standard decoding; `report` counts verdicts and
formats them.
"""
