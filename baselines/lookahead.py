"""Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057), also by its published names."""

from __future__ import annotations

from ouroboros.drafters import lookahead


class Lookahead(lookahead.Lookahead):
    """Lookahead decoding with our names or those of the published code.

    `LEVEL` is ngram_size, `WINDOW_SIZE` window_size, `GUESS_SET_SIZE` verification_set_size.
    Raises `ValueError` if both names of a setting are given, or neither.
    """

    def __init__(
        self,
        *,
        window_size: int | None = None,
        ngram_size: int | None = None,
        verification_set_size: int | None = None,
        pool_from_prompt: bool = True,
        seed: int = 0,
        LEVEL: int | None = None,
        WINDOW_SIZE: int | None = None,
        GUESS_SET_SIZE: int | None = None,
    ) -> None:
        super().__init__(
            window_size=_one(window_size=window_size, WINDOW_SIZE=WINDOW_SIZE),
            ngram_size=_one(ngram_size=ngram_size, LEVEL=LEVEL),
            verification_set_size=_one(
                verification_set_size=verification_set_size, GUESS_SET_SIZE=GUESS_SET_SIZE
            ),
            pool_from_prompt=pool_from_prompt,
            seed=seed,
        )


def _one(**names: int | None) -> int:
    given = {name: value for name, value in names.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"give exactly one of {' and '.join(names)}")
    return next(iter(given.values()))
