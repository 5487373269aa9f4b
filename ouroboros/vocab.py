"""Check that two tokenizers are compatible, and find the ids that end a text.

The vocabularies may differ in size (such as 32000 and 32016). Ids in both must stand for the same
token; ids that only the draft has are never proposed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from transformers import AutoTokenizer

from ouroboros.engine.model import CachedModel

PADDING = 1024  # models with the same tokenizer differ by at most this many ids


def fingerprint(tokenizer) -> str:
    """Return a short hash of a tokenizer's vocabulary."""
    pieces = sorted((index, piece) for piece, index in tokenizer.get_vocab().items())
    return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]


def eos_ids(model: CachedModel) -> frozenset[int]:
    """Return the model's end-of-sequence ids, from the generation config or else the tokenizer."""
    config = getattr(model.model, "generation_config", None)
    found = (getattr(source, "eos_token_id", None) for source in (config, model.tokenizer))
    ids = next((ids for ids in found if ids is not None), ())
    return frozenset([ids] if isinstance(ids, int) else ids)


def check_pair(target: CachedModel, draft: CachedModel) -> None:
    """Limit the draft to the ids that both models have.

    If a model has no tokenizer, it is loaded from the model's folder or the local cache, if found.
    Raises `ValueError` naming the first id at which the tokenizers differ, or, if a tokenizer is
    missing, if the numbers of ids differ by more than PADDING.
    """
    draft.width = min(draft.vocab_size, target.vocab_size)
    names = (getattr(getattr(m, "model", None), "name_or_path", "") for m in (target, draft))
    given = zip((target, draft), names, strict=True)
    ours, theirs = (model.tokenizer or _tokenizer_at(name) for model, name in given)
    if ours is None or theirs is None:
        if abs(target.vocab_size - draft.vocab_size) > PADDING:
            raise ValueError(
                f"the target has {target.vocab_size} token ids and the draft {draft.vocab_size}: "
                "their tokenizers differ; choose a draft of the target's family"
            )
    else:
        draft.width = min(draft.width, _known_ids(ours, theirs, len(ours), len(theirs)))


@lru_cache(maxsize=4)
def _known_ids(target_tokenizer, draft_tokenizer, *sizes: int) -> int:
    """Return the largest id of the target's tokenizer, plus 1. Raises `ValueError` if the two
    tokenizers have different tokens for an id. `sizes` is part of the cache key only."""
    ours, theirs = (
        {index: piece for piece, index in tokenizer.get_vocab().items()}
        for tokenizer in (target_tokenizer, draft_tokenizer)
    )
    for index in sorted(ours.keys() & theirs.keys()):
        if ours[index] != theirs[index]:
            raise ValueError(
                f"the tokenizers differ: id {index} is {ours[index]!r} for the target and "
                f"{theirs[index]!r} for the draft; choose a draft of the target's family"
            )
    return max(ours) + 1 if ours else 1


@lru_cache(maxsize=4)
def _tokenizer_at(origin: str):
    """Load the tokenizer of a folder or hub id from local files; return None if that fails."""
    if not origin:
        return None
    try:
        return AutoTokenizer.from_pretrained(origin, local_files_only=True, trust_remote_code=False)
    except Exception:  # many kinds of errors: no usable tokenizer
        return None
