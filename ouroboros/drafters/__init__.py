"""Who proposes trees: Ouroboros, lookahead, and the phrases they draw on.

From outside take `Ouroboros`, `OuroborosPaper`, `Lookahead`, and `save_state` and `load_state` for
what they learn. What Ouroboros is measured against stands in `ouroboros.baselines`.
"""
