"""Grow one draft tree from phrases, recycled predictions and a draft model's rankings: no model.

`tree_grower.TreeGrower` is the interface: lists and arrays in, trees out. Behind it are compiled
functions on one record (`state`), in the order of a step: `phrase_index` (where else a token
occurred, and the target's predictions after rejected tokens), `candidates` (which tokens may
follow, and how likely each is the target's), `grow` (the tree, draft calls, how many nodes to
verify) and `feedback` (what verification teaches). tests/drafters/draft_tree/test_example.py
follows one step by hand.
"""
