"""Who proposes trees: Ouroboros, lookahead, and the phrases they draw on.

From outside take `Ouroboros`, `Lookahead`, `PhrasePool` (phrases of the published policy) and
`Remembered` (those of ours). What Ouroboros is measured against stands in `ouroboros.baselines`.
"""

from ouroboros.drafters.growth.remembered import Remembered

__all__ = ["Remembered"]
