"""The pair of models that ships with the package, in one call and with nothing to download.

    target, draft, tokenizer = ouroboros.reference()

Small, and trained for this project: see `ouroboros/reference/CARD.md`. Their vocabulary is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

FOLDER = Path(__file__).with_name("reference")


class ReferencePair(NamedTuple):
    """Both models as transformers has them, in evaluation mode, and their tokenizer."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase


def reference(*, dtype: torch.dtype = torch.float32) -> ReferencePair:
    """Return the reference pair, loaded anew, in `dtype` on the CPU."""
    roles = ("target", "draft")
    target, draft = (LlamaForCausalLM.from_pretrained(FOLDER / r, dtype=dtype) for r in roles)
    return ReferencePair(target, draft, AutoTokenizer.from_pretrained(FOLDER / "target"))
