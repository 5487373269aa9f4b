"""Gumbel noise of a `Sampler` on a CPU: a hash of (seed, position, token id), compiled with numba.

It is bitwise identical to `ouroboros.core.select.gumbel` on a GPU: logarithms use only +, -, x and
/, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.core.jit import CONFIG, cache_folder, compile_now, njit

SOURCE = Path(__file__)
GOLDEN = -0x61C8864680B583EB  # 2**64 / golden ratio, as an int64
BLOCK = 1024  # ids whose noise is computed together: values that fit the CPU's cache
CACHE = cache_folder([SOURCE])
COMPILED = not CONFIG.DISABLE_JIT


def jit(function: Callable) -> Any:
    """Compile a function when it is first called; its machine code is cached in `CACHE`."""
    return njit(function, CACHE, error_model="numpy")


@jit
def _mix(x):
    """Apply splitmix64's finaliser (Steele et al. 2014) to an int64, with logical shifts."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@jit
def _log(mantissa, exponent):
    """Return the logarithm of mantissa x 2**exponent, to 1e-14; the mantissa is in [0.5, 1)."""
    low = mantissa < 0.7071067811865476
    mantissa = mantissa * 2 if low else mantissa
    exponent = exponent - 1 if low else exponent
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = 1 / 21
    for half in range(9, -1, -1):
        series = series * square + 1 / (2 * half + 1)
    return 2 * s * series + exponent * 0.6931471805599453


@jit
def position_key(seed, position):
    """Return the hash of seed and position that `gumbel_of` takes as `key`."""
    return _mix(_mix(seed + GOLDEN) + position)


@jit
def hash_bits(x):
    """Return the 52 bits of the hash of x that make a uniform number."""
    return (_mix(x) >> 12) & 0xFFFFFFFFFFFFF


@jit
def _uniform(key, token):
    """Return a token's uniform number in (0, 1)."""
    return (hash_bits(key + (token + 1) * GOLDEN) + 0.5) * 2.220446049250313e-16


@jit
def gumbel_of(key, token):
    """Return a token's Gumbel noise in float64.

    Noise is a function of seed, position and id, so it is known before the target is called.
    """
    mantissa, exponent = math.frexp(_uniform(key, token))
    mantissa, exponent = math.frexp(-_log(mantissa, exponent))
    return -_log(mantissa, exponent)


@jit
def _negative_log(values):
    """Return -log of positive normal float64 numbers. Each loop compiles to vector instructions,
    which `math.frexp` would prevent."""
    bits, out = values.view(np.int64), np.empty_like(values)
    mantissas = np.empty_like(bits)
    for index in range(len(bits)):
        mantissas[index] = (bits[index] & 0xFFFFFFFFFFFFF) | 0x3FE0000000000000
    mantissa = mantissas.view(np.float64)
    for index in range(len(bits)):
        out[index] = -_log(mantissa[index], np.float64((bits[index] >> 52) - 1022))
    return out


@jit
def _fill(seed, position, out):
    """Write the noise of a position into `out`, [vocab] float32."""
    key = position_key(seed, position)
    for first in range(0, len(out), BLOCK):
        values = np.empty(min(BLOCK, len(out) - first))
        for index in range(len(values)):
            values[index] = _uniform(key, first + index)
        noise = _negative_log(_negative_log(values))
        for index in range(len(values)):
            out[first + index] = noise[index]


@cache
def _compiled() -> Callable:
    def compile_all() -> Callable:
        _fill(0, 0, np.empty(1, np.float32))
        return _fill

    return compile_now(compile_all, CACHE, "the sampler")


def noise_rows(seed: int, positions: Sequence[int], vocab: int) -> np.ndarray:
    """Return the noise of ids 0 ... vocab - 1 at each position, [positions, vocab] float32."""
    rows, fill = np.empty((len(positions), vocab), np.float32), _compiled()
    for position, row in zip(positions, rows, strict=True):
        fill(seed, position, row)
    return rows
