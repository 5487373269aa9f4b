"""Ouroboros: lossless decoding acceleration, and a benchmark of lossless decoders on one engine.

Names are imported on first use, so that `ouroboros --help` does not import torch.
"""

# ruff: noqa: F401
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ouroboros.core.select import Sampler, argmax
    from ouroboros.core.trace import DecodeTrace, StepRecord
    from ouroboros.core.tree import TokenTree
    from ouroboros.decode import Drafter, decode
    from ouroboros.drafters.ouroboros import Ouroboros
    from ouroboros.drafters.ouroboros_paper import OuroborosPaper
    from ouroboros.drafters.pool import PhrasePool
    from ouroboros.engine.frozen import ModelChanged
    from ouroboros.engine.model import CachedModel
    from ouroboros.integrations.generate import custom_generate, generate
    from ouroboros.models.load import load
    from ouroboros.models.reference import ReferencePair, reference

__version__ = "0.9.0"

_MODULES = {
    "decode": "decode",
    "Drafter": "decode",
    "Ouroboros": "drafters.ouroboros",
    "OuroborosPaper": "drafters.ouroboros_paper",
    "PhrasePool": "drafters.pool",
    "CachedModel": "engine.model",
    "ModelChanged": "engine.frozen",
    **dict.fromkeys(("custom_generate", "generate"), "integrations.generate"),
    "load": "models.load",
    **dict.fromkeys(("ReferencePair", "reference"), "models.reference"),
    **dict.fromkeys(("Sampler", "argmax"), "core.select"),
    **dict.fromkeys(("DecodeTrace", "StepRecord"), "core.trace"),
    "TokenTree": "core.tree",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ouroboros' has no attribute {name!r}")
    value = getattr(import_module(f"ouroboros.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


class _Package(ModuleType):
    """Module type that keeps the function `ouroboros.decode`: importing the submodule of the same
    name would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
