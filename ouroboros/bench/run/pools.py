"""Phrase pools that outlive a prompt, kept beside the samples so that a resumed run has them too.

Invariant: `pool-<decoder>.json` is always whole, and never ahead of the samples: it is written
after each sample's line. A run that was killed between the two resumes without the phrases of that
one sample.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from ouroboros import vocab

CARRIED = "task"


class Pool(Protocol):
    """What outlives a prompt."""

    def save(self, path: str | Path, *, tokenizer_id: str) -> None:
        """Write it, whole or not at all."""
        ...


class Carrier(Protocol):
    """A decoder whose pool outlives a prompt."""

    @property
    def pool(self) -> Pool: ...

    def read_pool(self, path: Path, *, tokenizer_id: str) -> Pool:
        """Read a pool of this decoder's kind. Raises `ValueError` for what is none."""
        ...

    def restore(self, pool: Pool) -> None:
        """Hold exactly what a pool holds."""
        ...


class CarriedPools:
    """The pools of those decoders that carry one over the run (`pool_state` "task")."""

    def __init__(self, folder: Path, decoders: Mapping[str, object], tokenizer) -> None:
        self.folder = folder
        self.carriers: dict[str, Carrier] = {
            name: decoder  # type: ignore[misc]
            for name, decoder in decoders.items()
            if getattr(decoder, "pool_state", None) == CARRIED
        }
        self.tokenizer_id = vocab.fingerprint(tokenizer) if self.carriers else ""

    def restore(self, begun: Collection[str]) -> None:
        """Fill the pools of decoders that have `begun` from their files, where there are any.

        Raises `ValueError` for a damaged file.
        """
        for name, decoder in self.carriers.items():
            path = pool_path(self.folder, name)
            if name in begun and path.exists():
                decoder.restore(decoder.read_pool(path, tokenizer_id=self.tokenizer_id))

    def save(self, name: str) -> None:
        """Write one decoder's pool, if it carries one."""
        if name in self.carriers:
            path = pool_path(self.folder, name)
            self.carriers[name].pool.save(path, tokenizer_id=self.tokenizer_id)


def carriers(options: Mapping[str, Mapping]) -> list[str]:
    """Return the names of the configured decoders whose pool outlives a prompt."""
    return [name for name, own in options.items() if own.get("pool_state") == CARRIED]


def pool_path(folder: Path, decoder: str) -> Path:
    """Return where a decoder's pool is kept."""
    return folder / f"pool-{decoder}.json"
