"""The best tokens of rows of logits on a CPU, compiled with numba.

Logits are read row by row, without temporary copies of all rows: in torch these take as long as a
call of a small draft model. Scores are compared by their bits, as integers, which vectorises
and orders NaN above all numbers. When sampling, a score includes Gumbel noise. Its logarithms are
computed only for tokens that a cheap upper bound of their noise lets be among the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ouroboros.core import noise
from ouroboros.core.jit import CONFIG, cache_folder, compile_now, njit
from ouroboros.core.noise import GOLDEN, gumbel_of, hash_bits, position_key

SOURCE = Path(__file__)
CACHE = cache_folder([SOURCE, noise.SOURCE])
BLOCK = 128  # columns; the highest score of each block is stored
LOWEST = np.int32(-(2**31))
INFINITY = np.int32(0x7F800000)  # the bits of infinity; those of NaN are larger
TYPES = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
NO_IDS = np.empty(0, np.int64)
BOUND = np.float32(math.log(2) * (52 + 127) + 1e-3)  # `_add_bounds`: at float32 bits of 0
SLOPE = np.float32(math.log(2) / 2**23)


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
def _bits(words, at):
    """Return the float32 bits of a logit that is stored as float32 or bfloat16."""
    word = np.int32(words[at])
    return np.int32(word << np.int32(16)) if words.itemsize == 2 else word


@jit
def _key(bits):
    """Return an int32 that orders a float32, given by its bits; NaN is highest, -0.0 equals 0.0."""
    size = np.int32(bits & np.int32(0x7FFFFFFF))  # numba widens most results to 64 bits
    key = np.int32(-size) if bits < np.int32(0) else size
    return np.int32(0x7FFFFFFF) if size > INFINITY else key


@jit
def _highest(words):
    """Return the highest key of some words."""
    best = LOWEST
    for at in range(len(words)):
        key = _key(_bits(words, at))
        best = key if key > best else best
    return best


@jit
def _list_highest(words, maxima):
    """Write the highest key of each block of words to `maxima`."""
    for block in range(len(maxima)):
        maxima[block] = _highest(words[block * BLOCK : min((block + 1) * BLOCK, len(words))])


@jit
def _maximum(values):
    """Return the largest value."""
    best = _highest(values.view(np.int32))
    bits = best if best >= 0 else -best | LOWEST
    return np.full(1, bits, np.int32).view(np.float32)[0]


@jit
def _before(key, column, other_key, other_column):
    """Return whether a token ranks before another one."""
    return key > other_key or (key == other_key and column < other_column)


@jit
def _add_bounds(values, key, ids, rest, scores):
    """Write values + an upper bound of the tokens' noise to `scores`. Column i is the token ids[i],
    without `ids` the token i; `rest` is scratch.

    For u = 1 - r the noise -log(-log(u)) is at most -log(r); and log2(r) is at least what the bits
    of r say if its mantissa is read as a straight line, which makes the bound at most 0.06 larger.
    """
    for i in range(len(values)):
        token = ids[i] if len(ids) else i
        above = np.float64(0xFFFFFFFFFFFFF - hash_bits(key + (token + 1) * GOLDEN))
        rest[i] = np.float32(above + 0.5)
    bits = rest.view(np.int32)
    for i in range(len(values)):
        scores[i] = values[i] + (BOUND - SLOPE * np.float32(bits[i]))


@jit
def _rank(words, temperature, seed, positions, ids, out):
    """Write columns, scores and shares of the best tokens of each row to `out` [rows, 3, count];
    ties go to the lowest column. `words` are the bits of the logits [rows, vocab]. A score is logit
    / temperature, plus the noise of `seed` and the row's position (`positions` empty: no noise).
    Column i is the token ids[i], without `ids` the token i.

    Searches blocks of columns in descending order of their highest score (with noise, of its upper
    bound), until no remaining block can contain one of the best."""
    rows, vocab = words.shape
    last, shares, noisy = out.shape[2] - 1, out.shape[1] > 2, len(positions) > 0
    best_keys = np.empty(out.shape[2], np.int32)
    maxima = np.empty(-(-vocab // BLOCK), np.int32)
    plain, key = temperature == np.float32(1.0) and not noisy, np.int64(0)
    room = 0 if plain and not shares else vocab
    values, scratch = np.empty(room, np.float32), np.empty(room, np.float32)
    rest = np.empty(vocab if noisy else 0, np.float32)
    read, bits = values.view(np.int32), scratch.view(np.int32)
    score = np.empty(1, np.float32)
    score_bits = score.view(np.int32)
    for row in range(rows):
        own = words[row]
        for i in range(room):
            read[i] = _bits(own, i)
        if temperature != np.float32(1.0):
            for i in range(vocab):
                values[i] = values[i] / temperature
        if noisy:
            key = position_key(seed, positions[row])
            _add_bounds(values, key, ids, rest, scratch)
        if plain:
            _list_highest(own, maxima)
        else:
            _list_highest(bits if noisy else read, maxima)
        found = 0
        while True:
            best, block = LOWEST, 0
            for other in range(len(maxima)):
                best = max(best, maxima[other])
            while maxima[block] != best:
                block += 1
            start = block * BLOCK
            # no remaining column can rank before the last one kept
            if found > last and not _before(best, start, best_keys[last], out[row, 0, last]):
                break
            maxima[block] = LOWEST
            for at in range(start, min(start + BLOCK, vocab)):
                if plain:
                    score_bits[0] = _bits(own, at)
                else:
                    score_bits[0] = bits[at] if noisy else read[at]
                best = _key(score_bits[0])
                if found > last and not _before(best, at, best_keys[last], out[row, 0, last]):
                    continue
                if noisy:
                    token = ids[at] if len(ids) else at
                    score[0] = values[at] + np.float32(gumbel_of(key, token))
                    best = _key(score_bits[0])
                    if found > last and not _before(best, at, best_keys[last], out[row, 0, last]):
                        continue
                place = min(found, last)
                while place and _before(best, at, best_keys[place - 1], out[row, 0, place - 1]):
                    best_keys[place] = best_keys[place - 1]
                    out[row, :2, place] = out[row, :2, place - 1]
                    place -= 1
                best_keys[place], out[row, 0, place], out[row, 1, place] = best, at, score[0]
                found = min(found + 1, last + 1)
        if shares:
            highest = _maximum(values)
            total = _sum_exp(values, highest, scratch)
            for place in range(out.shape[2]):
                value = values[np.int64(out[row, 0, place])]
                out[row, 2, place] = np.exp(np.float64(value - highest)) / total


@cache
def _compiled() -> Callable:
    def compile_all() -> Callable:
        for kind in (np.int16, np.int32):
            words, none = np.zeros((1, BLOCK), kind), NO_IDS
            _rank(words, np.float32(1.0), 0, none, none, np.empty((1, 3, 1)))
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
    seed: int = 0,
    positions: Sequence[int] = (),
    ids: torch.Tensor | None = None,
    shares: bool = True,
) -> np.ndarray:
    """Return columns, scores and, with `shares`, probabilities of the `count` best tokens of each
    row of `logits` [rows, vocab]: [rows, 3 or 2, count] float64, best first; ties go to the lowest
    column.

    A score is logit / temperature in float32, plus, with `positions` [rows], the noise of `seed`
    there (`ouroboros.core.noise`); a share is the softmax of logit / temperature. Column i is the
    token ids[i] (int64), by default the token i.
    """
    words = logits.detach().contiguous().view(TYPES[logits.dtype]).numpy()
    at = np.array(positions, np.int64)
    tokens = NO_IDS if ids is None else ids.numpy()
    out = np.empty((len(words), 2 + shares, count))
    _compiled()(words, np.float32(temperature), seed, at, tokens, out)
    return out
