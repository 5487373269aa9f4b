"""The reference pair: SmolLM2-135M-Instruct and a draft distilled from it.

    target, draft, tokenizer = ouroboros.reference()

The target comes from the package index, the draft ships with this package: see
`ouroboros/reference/CARD.md`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from ouroboros.engine.cpu_intrinsics import can_multiply
from ouroboros.models.load import model_path


class ReferencePair(NamedTuple):
    """Both models, as loaded by transformers in evaluation mode, and their tokenizer."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase


def reference(*, dtype: torch.dtype | None = None) -> ReferencePair:
    """Load the reference pair on the CPU; return (target, draft, tokenizer).

    The dtype is by default that of the commands: bfloat16 if the CPU kernels have it, else float32.
    The tokenizer pads on the left, as generation needs it. Raises `ValueError` if the target is not
    installed."""
    dtype = dtype or (torch.bfloat16 if can_multiply(bfloat16=True) else torch.float32)
    folders = [model_path(f"reference/{role}") for role in ("target", "draft")]
    target, draft = (LlamaForCausalLM.from_pretrained(folder, dtype=dtype) for folder in folders)
    return ReferencePair(
        target, draft, AutoTokenizer.from_pretrained(folders[0], padding_side="left")
    )
