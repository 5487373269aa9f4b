"""Drafters, which propose token trees: Ouroboros, the published Ouroboros, and lookahead.

Import `Ouroboros`, `OuroborosPaper`, `Lookahead`, and `save_state` and `load_state` for their
learned state. The drafters that Ouroboros is compared with are in `ouroboros.baselines`.
"""
