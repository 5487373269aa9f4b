"""Phrase pools that outlive a prompt, kept beside the samples so that a resumed run has them too.

Invariant: `pool-<decoder>.json` is always whole, and never ahead of the samples: it is written
after each sample's line. A run that was killed between the two resumes without the phrases of that
one sample.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ouroboros import vocab
from ouroboros.drafters.pool import PhrasePool

CARRIED = "task"


class CarriedPools:
    """The pools of those decoders that carry one over the run (`pool_state` "task")."""

    def __init__(self, folder: Path, decoders: Mapping[str, object], tokenizer) -> None:
        self.folder = folder
        self.pools: dict[str, PhrasePool] = {
            name: decoder.pool  # type: ignore[attr-defined]
            for name, decoder in decoders.items()
            if getattr(decoder, "pool_state", None) == CARRIED
        }
        self.tokenizer_id = vocab.fingerprint(tokenizer) if self.pools else ""

    def restore(self, begun: Collection[str]) -> None:
        """Fill the pools of decoders that have `begun` from their files, where there are any.

        Raises `ValueError` for a damaged file.
        """
        for name, pool in self.pools.items():
            path = pool_path(self.folder, name)
            if name in begun and path.exists():
                sizes = {"phrase_len": pool.phrase_len, "per_key": pool.per_key}
                pool.restore(PhrasePool.load(path, tokenizer_id=self.tokenizer_id, **sizes))

    def save(self, name: str) -> None:
        """Write one decoder's pool, if it carries one."""
        if name in self.pools:
            path = pool_path(self.folder, name)
            self.pools[name].save(path, tokenizer_id=self.tokenizer_id)


def carriers(options: Mapping[str, Mapping]) -> list[str]:
    """Return the names of the configured decoders whose pool outlives a prompt."""
    return [name for name, own in options.items() if own.get("pool_state") == CARRIED]


def pool_path(folder: Path, decoder: str) -> Path:
    """Return where a decoder's pool is kept."""
    return folder / f"pool-{decoder}.json"
