"""How likely a candidate is the target's next token: two logistic models.

One sees the phrases alone, the other the draft model's ranking too. Invariant: an estimate depends
on the text, the path, the ranking, temperature and noise, and on what was learned before the step,
never on the rest of the tree. Features are named in `state`, weights are data (weights.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from ouroboros.drafters.draft_tree.jit import jit
from ouroboros.drafters.draft_tree.state import (
    DRAFT_FEATURES,
    PHRASE_FEATURES,
    RANKS,
    RECYCLED,
    SHORTLIST,
)

FORMAT = "ouroboros-estimates-2"
N_PHRASE, N_DRAFT = len(PHRASE_FEATURES), len(DRAFT_FEATURES)
MIN_SHARE, MIN_RATE = 0.002, 0.02  # shares and rates are clipped this far from 0 and 1
ROUNDING = 2.0**-23  # of a share near 1: shares are computed in float32
MAX_MARGIN, MAX_DRAFT_ODDS = 12.0, 7.6  # margins and the draft's log-odds are clipped, in logits
GOLDEN = -0x61C8864680B583EB


@dataclass(frozen=True)
class Weights:
    """Weights of the estimate without (`index`) and with the draft model's view (`draft`), in the
    order of `PHRASE_FEATURES` and `DRAFT_FEATURES`; `about` says what they were fitted on and how
    well they predict."""

    index: tuple[float, ...]
    draft: tuple[float, ...]
    about: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.index) != N_PHRASE or len(self.draft) != N_DRAFT:
            raise ValueError(
                f"{len(self.index)} and {len(self.draft)} weights for {N_PHRASE} and {N_DRAFT} "
                "features: fit them anew"
            )

    def save(self, path: str | Path) -> None:
        """Write JSON, which `load` reads."""
        content = {
            "format": FORMAT,
            "index": dict(zip(PHRASE_FEATURES, self.index, strict=True)),
            "draft": dict(zip(DRAFT_FEATURES, self.draft, strict=True)),
            "about": self.about,
        }
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path | None = None) -> Weights:
        """Read a file, by default the shipped one. Raises `ValueError` for any other file."""
        where = files(__package__) / "weights.json" if path is None else Path(path)
        try:
            content = json.loads(where.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise KeyError("format")
            index = _in_order(content["index"], PHRASE_FEATURES)
            return cls(index, _in_order(content["draft"], DRAFT_FEATURES), content["about"])
        except OSError as error:
            raise ValueError(f"cannot read the weights {where}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{where} holds no weights of this version ({error}): fit them anew, or leave "
                "weights out for the shipped ones"
            ) from error


def _in_order(weights: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    if set(weights) != set(names):
        raise KeyError(f"features {sorted(set(weights) ^ set(names))}")
    return tuple(float(weights[name]) for name in names)


@jit
def _mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@jit
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


@jit
def position_key(seed, position):
    """Return the key of one position's noise, for `gumbel_of`."""
    return _mix(_mix(seed + GOLDEN) + position)


@jit
def gumbel_of(key, token):
    """Return a token's Gumbel noise in float64: one value of `ouroboros.select.gumbel_rows`.

    The noise is a function of seed, position and id, so it is known before the target speaks; a
    whole row of the vocabulary would cost more than everything else in a step.
    """
    bits = _mix(key + (token + 1) * GOLDEN)
    uniform = (((bits >> 12) & 0xFFFFFFFFFFFFF) + 0.5) * 2.220446049250313e-16
    return -_log(-_log(uniform))


@jit
def log_odds(p, margin):
    """Return the log-odds of a probability, clipped to `margin` from 0 and 1."""
    p = min(max(p, margin), 1.0 - margin)
    return math.log(p / (1.0 - p))


@jit
def _clip(x, limit):
    return min(max(x, -limit), limit)


@jit
def set_step_features(s):
    """Set the features that are constant over a step: each source's hit rate."""
    s.phrase_odds = log_odds(s.phrase_hits / s.phrase_trials, MIN_RATE)
    s.draft_odds = log_odds(s.draft_hits / s.draft_trials, MIN_RATE)


@jit
def probability(s, weights, count):
    """Return the probability that weights give to the first `count` features."""
    x = 0.0
    for i in range(count):
        x += weights[i] * s.features[i]
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


@jit
def set_phrase_features(s, c, token, key):
    """Write the phrase features of candidate `c` (below 0: a token that no phrase proposes)."""
    x = s.features
    x[0] = 1.0
    if c >= 0:
        x[1] = log_odds(s.share[c], MIN_SHARE)
        x[2] = math.log2(1.0 + s.candidate_match[c])
        x[3] = math.log2(1.0 + s.candidate_rank[c])
        x[4] = 1.0 if token == s.longest_next else 0.0
        x[5] = 1.0 if s.candidate_match[c] == s.longest else 0.0
        x[6] = 1.0 if s.candidate_kind[c] == RECYCLED else 0.0
    else:
        x[1] = log_odds(0.0, MIN_SHARE)
        x[2] = 0.0
        x[3] = math.log2(1.0 + SHORTLIST)
        x[4] = 0.0
        x[5] = 0.0
        x[6] = 0.0
    x[7] = s.phrase_odds
    x[8] = s.temperature
    x[9] = s.temperature * x[1]
    x[10] = s.temperature * gumbel_of(key, token) if s.noisy else 0.0
    x[11] = s.temperature * x[2]


@jit
def set_draft_features(s, c, rank, scores, shares):
    """Write the draft model's features after the phrase features: of its token number `rank`, or
    below 0 of a token that it does not rank. `scores` and `shares` are its ranking's, [ranks]."""
    x = s.features
    last = s.ranks - 1
    while last > 0 and shares[last] <= 0.0:
        last -= 1
    if last == 0:  # the draft rules out all but its first
        share, margin = (1.0, MAX_MARGIN) if rank == 0 else (0.0, -MAX_MARGIN)
    elif rank >= 0:
        share = shares[rank]
        margin = s.logit_scale * (scores[rank] - scores[1 if rank == 0 else 0])
    else:
        share = 0.5 * shares[last]
        margin = s.logit_scale * (scores[last] - scores[0])
    others = 0.0
    for other in range(last + 1):
        if other != rank:
            others += shares[other]
    rest = max(others, 1.0 - share - ROUNDING)
    if rest <= 0.0 or share <= 0.0:
        odds = MAX_DRAFT_ODDS if share > 0.0 else -MAX_DRAFT_ODDS
    else:
        odds = _clip(s.logit_scale * math.log(share / rest), MAX_DRAFT_ODDS)
    margin = _clip(margin, MAX_MARGIN)
    x[N_PHRASE] = odds
    x[N_PHRASE + 1] = margin
    x[N_PHRASE + 2] = math.log2(1.0 + (rank if rank >= 0 else RANKS))
    x[N_PHRASE + 3] = 1.0 if rank < 0 else 0.0
    x[N_PHRASE + 4] = 1.0 if c < 0 else 0.0
    x[N_PHRASE + 5] = s.draft_odds
    x[N_PHRASE + 6] = 1.0 if rank == 0 and c >= 0 and s.candidate_rank[c] == 0 else 0.0
    x[N_PHRASE + 7] = s.temperature * margin
    x[N_PHRASE + 8] = s.temperature * odds
