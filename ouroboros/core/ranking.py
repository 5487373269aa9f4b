"""The best tokens of rows of logits on a CPU, compiled with numba.

Logits are read once, row by row, without temporary copies of all rows: in torch these take as long
as a call of a small draft model. Scores are compared by their bits, as integers, which vectorises
and orders NaN above all numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ouroboros.core.jit import CONFIG, cache_folder, compile_now, njit

SOURCE = Path(__file__)
CACHE = cache_folder([SOURCE])
BLOCK = 64  # ids whose best score is remembered together
LOWEST = np.int32(-(2**31))
INFINITY = np.int32(0x7F800000)  # the bits of infinity; those of NaN are larger
TYPES = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
NONE = np.empty((0, 0), np.float32)


def jit(function: Callable, *math: str) -> Any:
    """Compile a function when it is first called; its machine code is cached in `CACHE`."""
    return njit(function, CACHE, error_model="numpy", fastmath=set(math))


def _sum_exp(values, highest, scratch):
    """Return the sum of exp(value - highest), to 1e-6; overwrites `scratch`. 2**x is a polynomial
    in x - floor(x), with floor(x) added to the bits of its exponent."""
    bits = scratch.view(np.int32)
    for i in range(len(values)):
        x = max((values[i] - highest) * np.float32(1.4426950408889634), np.float32(-126.0))
        floor = np.floor(x)
        rest = x - floor
        power = np.float32(1.8775767e-3)
        power = power * rest + np.float32(8.9893397e-3)
        power = power * rest + np.float32(5.5826318e-2)
        power = power * rest + np.float32(2.4015361e-1)
        power = power * rest + np.float32(6.9315308e-1)
        scratch[i] = power * rest + np.float32(9.9999994e-1)
        bits[i] = bits[i] + (np.int32(floor) << np.int32(23))
    total = np.float32(0.0)
    for i in range(len(values)):
        total += scratch[i]
    return total


_sum_exp = jit(_sum_exp, "reassoc", "contract")


@jit
def _key(bits):
    """Return an int32 that orders a float32, given by its bits; NaN is highest, -0.0 equals 0.0."""
    size = bits & np.int32(0x7FFFFFFF)
    key = -size if bits < np.int32(0) else size
    return np.int32(0x7FFFFFFF) if size > INFINITY else key


@jit
def _maximum(values):
    """Return the largest value."""
    best, bits = LOWEST, values.view(np.int32)
    for i in range(len(bits)):
        best = max(best, _key(bits[i]))
    bits = best if best >= 0 else -best | LOWEST
    return np.full(1, bits, np.int32).view(np.float32)[0]


@jit
def _highest(keys, block):
    """Return the highest key of a block."""
    best = LOWEST
    for i in range(block * BLOCK, (block + 1) * BLOCK):
        best = max(best, keys[i])
    return best


@jit
def _rank(words, halves, temperature, noise, out):
    """Write ids, scores and shares of the best tokens of each row to `out` [rows, 3, count]; ties
    go to the lowest id. `words` are the bits of the logits [rows, vocab], of bfloat16 if `halves`;
    a score is logit / temperature + noise (no noise: empty)."""
    rows, vocab = words.shape
    blocks = -(-vocab // BLOCK)
    values = np.empty(vocab, np.float32)
    scratch = np.empty(vocab, np.float32)
    keys = np.full(blocks * BLOCK, LOWEST, np.int32)
    maxima = np.empty(blocks, np.int32)
    read, bits = values.view(np.int32), scratch.view(np.int32)
    for row in range(rows):
        if halves:
            for i in range(vocab):
                read[i] = np.int32(words[row, i]) << np.int32(16)
        else:
            for i in range(vocab):
                read[i] = np.int32(words[row, i])
        if temperature != np.float32(1.0):
            for i in range(vocab):
                values[i] = values[i] / temperature
        if len(noise):
            for i in range(vocab):
                scratch[i] = values[i] + noise[row, i]
        else:
            for i in range(vocab):
                scratch[i] = values[i]
        for i in range(vocab):
            keys[i] = _key(bits[i])
        for block in range(blocks):
            maxima[block] = _highest(keys, block)
        for place in range(out.shape[2]):
            best = LOWEST
            for block in range(blocks):
                best = max(best, maxima[block])
            block = 0
            while maxima[block] != best:
                block += 1
            at = block * BLOCK
            while keys[at] != best:
                at += 1
            out[row, 0, place], out[row, 1, place] = at, scratch[at]
            keys[at] = LOWEST
            maxima[block] = _highest(keys, block)
        if out.shape[1] > 2:
            highest = _maximum(values)
            total = _sum_exp(values, highest, scratch)
            for place in range(out.shape[2]):
                value = values[np.int64(out[row, 0, place])]
                out[row, 2, place] = np.exp(np.float64(value - highest)) / total


@cache
def _compiled() -> Callable:
    def compile_all() -> Callable:
        for kind in (np.int16, np.int32):
            words = np.zeros((1, BLOCK), kind)
            _rank(words, kind == np.int16, np.float32(1.0), NONE, np.empty((1, 3, 1)))
        return _rank

    return compile_now(compile_all, CACHE, "token selection")


def can_rank(logits: torch.Tensor, count: int) -> bool:
    """Return whether `rank` supports these logits: on a CPU, in float32 or bfloat16, with at least
    `count` columns, and with numba's compiler on."""
    fits = logits.device.type == "cpu" and logits.dtype in TYPES and count <= logits.shape[-1]
    return fits and not CONFIG.DISABLE_JIT


def rank(
    logits: torch.Tensor,
    count: int,
    *,
    temperature: float = 1.0,
    noise: torch.Tensor | None = None,
    shares: bool = True,
) -> np.ndarray:
    """Return ids, scores and, with `shares`, probabilities of the `count` best tokens of each row,
    [rows, 3 or 2, count] float64, best first; ties go to the lowest id.

    A score is logit / temperature + noise in float32, a share the softmax of logit / temperature.
    `logits` [rows, vocab] and `noise` are in memory row by row.
    """
    words = logits.detach().contiguous().view(TYPES[logits.dtype]).numpy()
    drawn = NONE if noise is None else noise.numpy()
    out = np.empty((len(words), 2 + shares, count))
    _compiled()(words, logits.dtype == torch.bfloat16, np.float32(temperature), drawn, out)
    return out
