"""What outlives a prompt, as plain data and as a file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ouroboros.drafters.draft_tree.learn import RATES
from ouroboros.drafters.draft_tree.state import CONTEXT

FORMAT = "ouroboros-phrases-2"


@dataclass(frozen=True)
class DrafterMemory:
    """Texts one after another with -1 between them, and recycled predictions, the oldest first,
    each the CONTEXT tokens before it (the nearest first, -1 where there was none) and itself;
    `rates` are what was learned about hits and costs (`learn.RATES`; empty: the first guesses)."""

    text: tuple[int, ...] = ()
    recycled: tuple[tuple[int, ...], ...] = ()
    rates: tuple[float, ...] = ()

    def __len__(self) -> int:
        """The number of tokens and predictions."""
        return len(self.text) + len(self.recycled)

    def save(self, path: str | Path, *, tokenizer_id: str) -> None:
        """Write JSON, whole or not at all; `tokenizer_id` names what the ids mean (see
        `vocab.fingerprint`)."""
        content = {
            "format": FORMAT,
            "tokenizer": tokenizer_id,
            "text": self.text,
            "recycled": self.recycled,
            "rates": self.rates,
        }
        partial = Path(f"{path}.partial")
        partial.write_text(json.dumps(content), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | Path, *, tokenizer_id: str) -> DrafterMemory:
        """Read a file back. Raises `ValueError` for one that is corrupt, or made with another
        tokenizer."""
        remedy = "make a new one with pool.save (in a run: save_pools=true), or start cold"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise KeyError("format")
            text = _ids(content["text"])
            recycled = tuple(_ids(entry) for entry in content["recycled"])
            if any(len(e) != CONTEXT + 1 or e[0] < 0 or e[-1] < 0 for e in recycled):
                raise ValueError("a prediction of another size")
            rates = tuple(float(value) for value in content["rates"])
            if rates and len(rates) != len(RATES):
                raise ValueError("rates of another version")
            made_by = content["tokenizer"]
        except OSError as error:
            raise ValueError(f"cannot read the phrases {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no phrases of this version: {remedy}") from error
        if made_by != tokenizer_id:
            raise ValueError(f"{path} was made with another tokenizer ({made_by}): {remedy}")
        return cls(text, recycled, rates)


def _ids(values: list) -> tuple[int, ...]:
    """Return token ids, and -1 for none. Raises `ValueError` for what is neither."""
    if not all(isinstance(value, int) and value >= -1 for value in values):
        raise ValueError("no token id")
    return tuple(values)
