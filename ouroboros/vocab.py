"""Check that two tokenizers are compatible.

A draft's vocabulary may be larger or smaller than its target's (32000 against 32016): ids that both
have must mean the same, and ids that only the draft has are never proposed.
"""

from __future__ import annotations

import hashlib

from ouroboros.engine.model import CachedModel


def fingerprint(tokenizer) -> str:
    """Return a short hash of a tokenizer's vocabulary."""
    pieces = sorted((index, piece) for piece, index in tokenizer.get_vocab().items())
    return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]


def check_pair(target: CachedModel, draft: CachedModel) -> None:
    """Limit the draft to the ids that both models have.

    Raises `ValueError` if the tokenizers differ, naming the first id that means different things.
    """
    if target.tokenizer is not None and draft.tokenizer is not None:
        ours = {index: piece for piece, index in target.tokenizer.get_vocab().items()}
        theirs = {index: piece for piece, index in draft.tokenizer.get_vocab().items()}
        for index in sorted(ours.keys() & theirs.keys()):
            if ours[index] != theirs[index]:
                raise ValueError(
                    f"the tokenizers differ: id {index} is {ours[index]!r} for the target and "
                    f"{theirs[index]!r} for the draft; choose a draft of the target's family"
                )
        draft.width = min(draft.vocab_size, target.vocab_size, max(ours) + 1 if ours else 1)
    draft.width = min(draft.width, target.vocab_size)
