"""The reference pair of models, which ships with the package.

    target, draft, tokenizer = ouroboros.reference()

Small models, trained for this project: see `ouroboros/reference/CARD.md`. They share a vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

FOLDER = Path(__file__).with_name("reference")


class ReferencePair(NamedTuple):
    """Both models, as loaded by transformers in evaluation mode, and their tokenizer."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase


def reference(*, dtype: torch.dtype = torch.float32) -> ReferencePair:
    """Load the reference pair in `dtype` on the CPU; return (target, draft, tokenizer).

    The tokenizer pads on the left, as generation needs it."""
    roles = ("target", "draft")
    target, draft = (LlamaForCausalLM.from_pretrained(FOLDER / r, dtype=dtype) for r in roles)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "target", padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return ReferencePair(target, draft, tokenizer)
