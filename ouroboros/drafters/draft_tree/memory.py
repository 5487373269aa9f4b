"""What outlives a prompt, as plain data and as a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ouroboros.drafters.draft_tree.state import CONTEXT, RATES
from ouroboros.drafters.pool import read_pool_file, write_pool_file

FORMAT = "ouroboros-phrases-2"


@dataclass(frozen=True)
class DrafterMemory:
    """Texts one after another with -1 between them; recycled predictions, oldest first, each the
    CONTEXT tokens before it (nearest first, -1 where there was none) and itself; and the learned
    `rates` (`state.RATES`; empty: the priors)."""

    text: tuple[int, ...] = ()
    recycled: tuple[tuple[int, ...], ...] = ()
    rates: tuple[float, ...] = ()

    def __len__(self) -> int:
        """The number of tokens and predictions."""
        return len(self.text) + len(self.recycled)

    def save(self, path: str | Path, *, tokenizer_id: str) -> None:
        """Write JSON, whole or not at all; `tokenizer_id` is the tokenizer's
        `vocab.fingerprint`."""
        write_pool_file(path, FORMAT, tokenizer_id, asdict(self))

    @classmethod
    def load(cls, path: str | Path, *, tokenizer_id: str) -> DrafterMemory:
        """Read a file back. Raises `ValueError` for a corrupt file and for another tokenizer."""
        return read_pool_file(path, FORMAT, tokenizer_id, cls._parse, what="phrases")

    @classmethod
    def _parse(cls, content: dict) -> DrafterMemory:
        text = _ids(content["text"])
        recycled = tuple(_ids(entry) for entry in content["recycled"])
        if any(len(e) != CONTEXT + 1 or e[0] < 0 or e[-1] < 0 for e in recycled):
            raise ValueError("a prediction of another size")
        rates = tuple(float(value) for value in content["rates"])
        if rates and len(rates) != len(RATES):
            raise ValueError("rates of another version")
        return cls(text, recycled, rates)


def _ids(values: list) -> tuple[int, ...]:
    """Return token ids, -1 for none. Raises `ValueError` for other values."""
    if not all(isinstance(value, int) and value >= -1 for value in values):
        raise ValueError("no token id")
    return tuple(values)
