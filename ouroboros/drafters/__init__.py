"""Who proposes trees: Ouroboros, lookahead, and the phrases they draw on.

From outside take `Ouroboros`, `Lookahead`, `PhrasePool` (phrases of the published policy) and
`DrafterMemory` (those of ours). What Ouroboros is measured against stands in `ouroboros.baselines`.
"""

from ouroboros.drafters.pool import DrafterMemory

__all__ = ["DrafterMemory"]
