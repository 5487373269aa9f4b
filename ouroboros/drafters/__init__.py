"""Drafters, which propose token trees: Ouroboros, the published Ouroboros, and lookahead.

`save_state` and `load_state` store what a drafter learned. The drafters that Ouroboros is compared
with are in `ouroboros.baselines`.
"""
