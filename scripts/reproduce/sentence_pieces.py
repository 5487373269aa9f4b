"""A real model's tokenizer without its model: 32,000 SentencePiece ids, from a package's data.

With the reference pair's code tokenizer, texts of Llama models would have more tokens and different
repetition. The optional package `mistral-common` (Apache-2.0) contains a Llama-like tokenizer as a
file; nothing else of the package is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

NAME = "SentencePiece, 32,000 ids (mistral-common's tokenizer.model.v1)"


class SentencePieces:
    """The part of a transformers tokenizer that a replay needs."""

    def __init__(self, path: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor(model_file=str(path))

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> SimpleNamespace:
        """Return `input_ids`, a BOS before them unless no special tokens are wanted."""
        ids = self._model.encode(text)
        return SimpleNamespace(
            input_ids=[self._model.bos_id(), *ids] if add_special_tokens else ids
        )

    def get_vocab(self) -> dict[str, int]:
        """Return every piece's id."""
        return {self._model.id_to_piece(id): id for id in range(self._model.vocab_size())}

    def decode(self, ids: list[int], **_: object) -> str:
        """Return the text of some ids."""
        return self._model.decode(list(ids))


def sentence_pieces() -> SentencePieces:
    """Return the tokenizer. Raises `SystemExit` if its packages are not installed."""
    package = find_spec("mistral_common")
    if package is None or package.origin is None or find_spec("sentencepiece") is None:
        raise SystemExit("--real-text: pip install 'ouroboros-decoding[recordings]'")
    return SentencePieces(Path(package.origin).parent / "data" / "tokenizer.model.v1")
