"""A tokenizer from whose ids the text comes back: else a model would read, and a score judge,
another text than the user's, without a word."""

from __future__ import annotations

from ouroboros.trace import first_mismatch

PROBE = "def f(a, b):\n    if a  ==  12:\n\treturn [3, 45]\n\n\n        # x = 0.1\n"
"""Code: indentation, runs of spaces, a tab, empty lines, digits."""


def check_round_trip(tokenizer, name: str) -> None:
    """Raise `ValueError` for a tokenizer that loses characters of code; `name` is its place.

    Some releases of transformers rebuild a byte-level tokenizer as another kind that drops every
    space (https://github.com/huggingface/transformers/issues/45488).
    """
    lost = _lost(tokenizer)
    if lost is not None:
        raise ValueError(
            f"the tokenizer of {name!r} ({type(tokenizer).__name__}) gives {lost[1]!r} back for "
            f"{lost[0]!r}: give the tokenizer that the model was trained with or, if this is it, "
            "set tokenizer_class to PreTrainedTokenizerFast in a local copy's "
            "tokenizer_config.json, so that tokenizer.json is read as it stands"
        )


def _lost(tokenizer) -> tuple[str, str] | None:
    """Return the part of the probe that does not come back, and what comes instead.

    A space before the text is lawful, and so is what the tokenizer's own normaliser does to it.
    """
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    found = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    lawful = [PROBE]
    if normaliser is not None:
        lawful.append(normaliser.normalize_str(PROBE).replace("\u2581", " "))
    if any(found.lstrip(" ") == text.lstrip(" ") for text in lawful):
        return None
    at = first_mismatch(PROBE, found)
    assert at is not None
    return PROBE[at : at + 12], found[at : at + 12]
