"""Encode prompts, find the ids that end a text, and check that two tokenizers are compatible.

The vocabularies may differ in size (such as 32000 and 32016). Ids in both must stand for the same
token, except for added ones: models of a family often rename special tokens. Ids that only the
draft has, or that it has under another name, are never proposed.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from jinja2 import TemplateError
from transformers import AutoTokenizer

from ouroboros.engine.model import CachedModel

PADDING = 1024  # models with the same tokenizer differ by at most this many ids
ANSWER = "Fine"
"""A short answer, to find the token that a chat template puts after answers."""


def fingerprint(tokenizer) -> str:
    """Return a short hash of a tokenizer's vocabulary."""
    pieces = sorted((index, piece) for piece, index in tokenizer.get_vocab().items())
    return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]


def encode(tokenizer, text: str) -> list[int]:
    """Return a prompt's token ids, with the special tokens that the tokenizer puts before a text.

    They are not repeated if the text begins with them. Special tokens that the tokenizer puts after
    a text, such as </s>, are left out, because a model would continue after the end.
    """
    ids = list(tokenizer(text).input_ids)
    bare = list(tokenizer(text, add_special_tokens=False).input_ids)
    added = len(ids) - len(bare)
    for before in range(added, -1, -1) if bare else ():
        if ids[before : before + len(bare)] == bare:
            return bare if bare[:before] == ids[:before] else ids[:before] + bare
    return ids


def end_of_turn(tokenizer) -> frozenset[int]:
    """Return the id of the special token that the chat template puts after an answer, such as
    <|im_end|>; no id without a template or such a token."""
    if not getattr(tokenizer, "chat_template", None):
        return frozenset()
    turns = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": ANSWER}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except (TemplateError, ValueError):  # a template that takes other messages
        return frozenset()
    _, answer, after = text.rpartition(ANSWER)
    ids = tokenizer(after.lstrip(), add_special_tokens=False).input_ids[:1] if answer else ()
    return frozenset(ids) & tokenizer.added_tokens_decoder.keys()


def eos_ids(model: CachedModel) -> frozenset[int]:
    """Return the ids that end a completion: those of the generation config, of the tokenizer, and
    the one that its chat template puts after an answer. They often differ: a tokenizer may end
    with <|im_end|>, its model's generation config with </s>."""
    found = end_of_turn(model.tokenizer)
    for source in (getattr(model.model, "generation_config", None), model.tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return frozenset(token for token in found if token < model.vocab_size)


def check_pair(target: CachedModel, draft: CachedModel) -> None:
    """Limit the draft to the ids that stand for the same token in both models.

    If a model has no tokenizer, it is loaded from the model's folder or the local cache, if found.
    Raises `ValueError` naming the first id at which the tokenizers differ (ids of added tokens may
    differ), or, if a tokenizer is missing, if the numbers of ids differ by more than PADDING.
    """
    draft.width, draft.masked = min(draft.vocab_size, target.vocab_size), None
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
        known, renamed = _known_ids(ours, theirs, len(ours), len(theirs))
        draft.width = min(draft.width, known)
        if masked := [index for index in renamed if index < draft.width]:
            draft.masked = torch.tensor(masked, device=draft.device)


@lru_cache(maxsize=4)
def _known_ids(target_tokenizer, draft_tokenizer, *sizes: int) -> tuple[int, list[int]]:
    """Return the largest id of the target's tokenizer, plus 1, and the ids of added tokens that
    have another name in the draft's tokenizer. Raises `ValueError` if the two tokenizers have
    different ordinary tokens for an id. `sizes` is part of the cache key only."""
    both = target_tokenizer, draft_tokenizer
    ours, theirs = ({i: piece for piece, i in own.get_vocab().items()} for own in both)
    added = {index for own in both for index in own.added_tokens_decoder}
    renamed = [i for i in sorted(ours.keys() & theirs.keys()) if ours[i] != theirs[i]]
    for index in renamed:
        if index not in added:
            raise ValueError(
                f"the tokenizers differ: id {index} is {ours[index]!r} for the target and "
                f"{theirs[index]!r} for the draft; choose a draft of the target's family"
            )
    return max(ours) + 1 if ours else 1, renamed


@lru_cache(maxsize=4)
def _tokenizer_at(origin: str):
    """Load the tokenizer of a folder or hub id from local files; return None if that fails."""
    if not origin:
        return None
    try:
        return AutoTokenizer.from_pretrained(origin, local_files_only=True, trust_remote_code=False)
    except Exception:  # many kinds of errors: no usable tokenizer
        return None
