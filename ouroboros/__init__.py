"""Ouroboros: lossless decoding acceleration on one engine, compared honestly."""

from ouroboros.custom import custom_generate
from ouroboros.decode import Drafter, decode
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.drafters.ouroboros_paper import OuroborosPaper
from ouroboros.drafters.pool import PhrasePool
from ouroboros.engine.model import CachedModel
from ouroboros.generate import generate
from ouroboros.reference_pair import ReferencePair, reference
from ouroboros.select import Sampler, argmax
from ouroboros.trace import DecodeTrace, StepRecord
from ouroboros.tree import TokenTree

__version__ = "0.2.0"

__all__ = [
    "CachedModel",
    "DecodeTrace",
    "Drafter",
    "Ouroboros",
    "OuroborosPaper",
    "PhrasePool",
    "ReferencePair",
    "Sampler",
    "StepRecord",
    "TokenTree",
    "argmax",
    "custom_generate",
    "decode",
    "generate",
    "reference",
]
