"""The text of each token, so that a page can show who produced which piece.

A byte-level token may be part of a character. Invariant: the pieces of a completion, joined, are
its text; a token that ends inside a character has the piece "" and the next one carries the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from ouroboros import vocab
from ouroboros.bench.run.pair import PACKAGE

Pieces = Callable[[Sequence[int]], list[str]]


def splitter(target: str | None, *, fingerprint: str | None = None, own: bool = False) -> Pieces:
    """Return what splits completions of a target model into pieces.

    `target` is run.json's: a hub id (asked of the local cache only, never of the network), a
    folder, or "reference/target". Where no tokenizer can be loaded, or one of another
    `fingerprint` (a folder's name may be another model's id), a piece is the token's id; for the
    caller's `own` place that is a `ValueError`.
    """
    tokenizer = _tokenizer(target) if target else None
    if tokenizer is None or fingerprint not in (None, vocab.fingerprint(tokenizer)):
        if own:
            raise ValueError(f"--tokenizer {target}: no tokenizer of the run's model lies there")
        return ids_as_pieces
    return lambda tokens: pieces(tokenizer, tokens)


def pieces(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return the text that each token adds, special tokens by name."""
    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in tokens]


def ids_as_pieces(tokens: Sequence[int]) -> list[str]:
    """Return each id as a piece of its own.

    >>> ids_as_pieces([7, 260])
    ['7 ', '260 ']
    """
    return [f"{token} " for token in tokens]


def _tokenizer(target: str) -> Tokenizer | None:
    place = str(PACKAGE / target) if target.startswith("reference/") else target
    try:
        file = Path(place) / "tokenizer.json"
        if file.exists():
            return Tokenizer.from_file(str(file))
        return AutoTokenizer.from_pretrained(place, local_files_only=True).backend_tokenizer
    except Exception:  # whatever a foreign tokenizer fails with, the ids remain
        return None
