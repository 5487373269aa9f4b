"""Is decoding lossless? A completion against standard decoding's: identical, numeric tie or BUG.

`audit` judges the completions of one prompt; `report` counts verdicts and writes them as text.
"""
