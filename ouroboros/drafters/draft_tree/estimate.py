"""How likely a token is the target's next: two logistic models, without and with the draft's view.

Invariant: an estimate depends on the text, the path, the draft's ranking, temperature and noise,
and what was learned before the step; so it is the same whatever else stands in the tree. The
features are named in `INDEX` and `DRAFT`; their weights are data
(`ouroboros.drafters.draft_tree.weights`).
"""

from __future__ import annotations

import math

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.noise import gumbel_of
from ouroboros.drafters.draft_tree.state import (
    INDEX_FEATURES,
    RANKS,
    RECYCLED,
    SHORTLIST,
)

INDEX = (
    "one",
    "log-odds of the share",
    "log2(1 + match)",
    "log2(1 + rank)",
    "newest of the longest matches",
    "match is the longest",
    "only recycled",
    "log-odds of the index's hit rate",
    "temperature",
    "temperature x log-odds of the share",
    "temperature x noise",
    "temperature x log2(1 + match)",
)
DRAFT = (
    *INDEX,
    "log-odds of the draft's share",
    "the draft's margin",
    "log2(1 + the draft's rank)",
    "not among the draft's ranks",
    "not in the index",
    "log-odds of the draft's hit rate",
    "first for both",
    "temperature x the draft's margin",
    "temperature x log-odds of the draft's share",
)
LEAST_SHARE, LEAST_RATE = 0.002, 0.02
ROUNDING = 2.0**-23  # of a share near 1: shares are made in float32
WIDEST, WIDEST_ODDS = 12.0, 7.6  # margins and the draft's log-odds are cut here, in logits


@compiled
def log_odds(share, least):
    """Return the log-odds of a probability, kept `least` away from 0 and 1."""
    share = min(max(share, least), 1.0 - least)
    return math.log(share / (1.0 - share))


@compiled
def _within(x, most):
    """Return a number, kept between -most and most."""
    return min(max(x, -most), most)


@compiled
def _draft_odds(s, share, rest):
    """Return the log-odds of a token's share against the rest's, in logits."""
    if rest <= 0.0 or share <= 0.0:
        return WIDEST_ODDS if share > 0.0 else -WIDEST_ODDS
    return _within(s.unit * math.log(share / rest), WIDEST_ODDS)


@compiled
def logistic(x):
    """Return the probability of log-odds."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    e = math.exp(x)
    return e / (1.0 + e)


@compiled
def weighed(s, weights, count):
    """Return the probability that weights give to the features."""
    x = 0.0
    for i in range(count):
        x += weights[i] * s.features[i]
    return logistic(x)


@compiled
def set_odds(s):
    """Set the features that are the same all over a step: how often each source was right."""
    s.index_odds = log_odds(s.index_hits / s.index_trials, LEAST_RATE)
    s.draft_odds = log_odds(s.draft_hits / s.draft_trials, LEAST_RATE)


@compiled
def index_features(s, c, token, key):
    """Write what the index says of a choice into `features`; c below 0: it does not know it."""
    x = s.features
    x[0] = 1.0
    if c >= 0:
        x[1] = log_odds(s.share[c], LEAST_SHARE)
        x[2] = math.log2(1.0 + s.choice_match[c])
        x[3] = math.log2(1.0 + s.rank_of[c])
        x[4] = 1.0 if token == s.longest_next else 0.0
        x[5] = 1.0 if s.choice_match[c] == s.longest else 0.0
        x[6] = 1.0 if s.choice_kind[c] == RECYCLED else 0.0
    else:
        x[1] = log_odds(0.0, LEAST_SHARE)
        x[2] = 0.0
        x[3] = math.log2(1.0 + SHORTLIST)
        x[4] = 0.0
        x[5] = 0.0
        x[6] = 0.0
    x[7] = s.index_odds
    x[8] = s.temperature
    x[9] = s.temperature * x[1]
    x[10] = s.temperature * gumbel_of(key, token) if s.noisy else 0.0
    x[11] = s.temperature * x[2]


@compiled
def draft_features(s, c, rank, base, scores, shares):
    """Write what the draft says of a choice behind the index's features; rank below 0: nothing.

    The draft's ranking of what follows the node begins at `base`.
    """
    x = s.features
    k = INDEX_FEATURES
    last = s.ranks - 1
    while last > 0 and shares[base + last] <= 0.0:
        last -= 1
    if last == 0:  # the draft rules out all but its first
        share, margin = (1.0, WIDEST) if rank == 0 else (0.0, -WIDEST)
    elif rank >= 0:
        share = shares[base + rank]
        margin = s.unit * (scores[base + rank] - scores[base + (1 if rank == 0 else 0)])
    else:
        share = 0.5 * shares[base + last]
        margin = s.unit * (scores[base + last] - scores[base])
    rest = 1.0 - share - ROUNDING
    others = 0.0
    for other in range(last + 1):
        if other != rank:
            others += shares[base + other]
    margin = _within(margin, WIDEST)
    x[k] = _draft_odds(s, share, max(others, rest))
    x[k + 1] = margin
    x[k + 2] = math.log2(1.0 + (rank if rank >= 0 else RANKS))
    x[k + 3] = 1.0 if rank < 0 else 0.0
    x[k + 4] = 1.0 if c < 0 else 0.0
    x[k + 5] = s.draft_odds
    x[k + 6] = 1.0 if rank == 0 and c >= 0 and s.rank_of[c] == 0 else 0.0
    x[k + 7] = s.temperature * margin
    x[k + 8] = s.temperature * x[k]
