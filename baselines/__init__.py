"""What Ouroboros is measured against, on the same engine (and transformers' own, as a peer)."""

from baselines.greedy import Greedy
from baselines.hf import HFGenerate
from baselines.lookahead import Lookahead
from baselines.prompt_lookup import PromptLookup
from baselines.speculative import Speculative

__all__ = ["Greedy", "HFGenerate", "Lookahead", "PromptLookup", "Speculative"]
