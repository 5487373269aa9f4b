"""The decoders that Ouroboros is compared with: drafters, and peers (transformers, llama.cpp)."""

from ouroboros.baselines.hf import HFGenerate
from ouroboros.baselines.prompt_lookup import PromptLookup
from ouroboros.baselines.racer import Racer
from ouroboros.baselines.recycling import TokenRecycling
from ouroboros.baselines.speculative import AdaptiveSpeculative, Speculative
from ouroboros.baselines.suffix import SuffixDecoding

from ouroboros.decode import RootOnly
from ouroboros.drafters.lookahead import Lookahead

__all__ = [
    "AdaptiveSpeculative",
    "Greedy",
    "HFGenerate",
    "Lookahead",
    "PromptLookup",
    "Racer",
    "Speculative",
    "SuffixDecoding",
    "TokenRecycling",
]


class Greedy(RootOnly):
    """Standard decoding: one target call per token, greedy or sampled."""
