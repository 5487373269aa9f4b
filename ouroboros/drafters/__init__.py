"""Drafters, which propose token trees: Ouroboros, its version in the paper, and lookahead decoding.

`pool.save_state` and `pool.load_state` store what a drafter learned. The baselines' drafters are in
`ouroboros.baselines`.
"""
