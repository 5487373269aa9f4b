"""Grow one draft tree from phrases, recycled predictions and a draft model's rankings.

Recycled predictions are tokens that the target predicted after rejected nodes. No model is called
here: `tree_grower.TreeGrower` takes lists and arrays and returns trees. It calls compiled functions
that work on one record (`state`). `phrase_index` finds earlier occurrences of a token and recycled
predictions. `candidates` lists the tokens that may follow, with probabilities. `grow` grows the
tree, decides on draft calls and nodes to verify, and learns from verification.
tests/drafters/draft_tree/test_example.py works through one step by hand.
"""
