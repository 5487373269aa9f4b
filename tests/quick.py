"""Which parameters `make test` takes. Imports nothing that takes long."""

from collections.abc import Iterable

import pytest


def mostly_slow(values: Iterable, quick: Iterable) -> list:
    """Return parameters of which `make test` takes those in `quick`, and `make test-all` all."""
    quick, slow = list(quick), pytest.mark.slow
    rows = ((one, one if isinstance(one, tuple) else (one,)) for one in values)
    return [pytest.param(*row, marks=() if one in quick else slow) for one, row in rows]
