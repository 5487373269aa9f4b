"""Ouroboros: lossless decoding acceleration on one engine, compared honestly."""

from ouroboros.choose import Sampler, argmax
from ouroboros.custom import custom_generate
from ouroboros.decode import Drafter, decode
from ouroboros.drafters.ouroboros import Ouroboros
from ouroboros.drafters.pool import PhrasePool
from ouroboros.engine.model import CachedModel
from ouroboros.generate import generate
from ouroboros.trace import DecodeTrace, StepRecord
from ouroboros.tree import TokenTree

__all__ = [
    "CachedModel",
    "DecodeTrace",
    "Drafter",
    "Ouroboros",
    "PhrasePool",
    "Sampler",
    "StepRecord",
    "TokenTree",
    "argmax",
    "custom_generate",
    "decode",
    "generate",
]
