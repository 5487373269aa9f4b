"""The sampler's noise of single tokens: `ouroboros.select.gumbel_rows`, one value at a time.

The noise is a function of seed, position and id, so a drafter knows it before the target speaks. A
whole row of the vocabulary would cost more than all else that a drafter does.
"""

from __future__ import annotations

import math

from ouroboros.drafters.draft_tree.compiled import COMPILED, compiled

GOLDEN = -0x61C8864680B583EB

if COMPILED:

    @compiled
    def wrapped(x):
        """Return a whole number as 64 bits hold it, which is what a product is here already."""
        return x

else:

    def wrapped(x):
        """Return a whole number as 64 bits hold it."""
        return ((x + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


@compiled
def _mix(x):
    x = wrapped((x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47)
    x = wrapped((x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15)
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@compiled
def _log(x):
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa = mantissa * 2
        exponent = exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = 1 / 21
    for half in range(9, -1, -1):
        series = series * square + 1 / (2 * half + 1)
    return 2 * s * series + exponent * 0.6931471805599453


@compiled
def position_key(seed, position):
    """Return what the noise of one position is made from."""
    return _mix(wrapped(_mix(wrapped(seed + GOLDEN)) + position))


@compiled
def gumbel_of(key, token):
    """Return the noise of a token at the position that `key` stands for, in float64."""
    bits = _mix(wrapped(key + wrapped((token + 1) * GOLDEN)))
    uniform = (((bits >> 12) & 0xFFFFFFFFFFFFF) + 0.5) * 2.220446049250313e-16
    return -_log(-_log(uniform))
