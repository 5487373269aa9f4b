"""Load a Llama-like tokenizer, with 32,000 SentencePiece ids, from a package's data.

The reference pair's tokenizer is made for code; with it, texts of Llama models would have more
tokens and different repetition. Only the tokenizer file of the optional package `mistral-common`
(Apache-2.0) is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

NAME = "SentencePiece, 32,000 ids (mistral-common's tokenizer.model.v1)"


class SentencePieces:
    """A tokenizer with those methods of a transformers tokenizer that a replay calls."""

    def __init__(self, path: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor(model_file=str(path))

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> SimpleNamespace:
        """Encode a text; return its `input_ids`, after a BOS token if `add_special_tokens`."""
        ids = self._model.encode(text)
        return SimpleNamespace(
            input_ids=[self._model.bos_id(), *ids] if add_special_tokens else ids
        )

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by piece."""
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
