"""Who proposes trees: Ouroboros, lookahead, and the phrases they draw on.

From outside take `Ouroboros`, `Lookahead`, `PhrasePool`. What Ouroboros is measured against stands
in `ouroboros.baselines`.
"""
