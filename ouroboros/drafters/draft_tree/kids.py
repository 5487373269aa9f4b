"""A node's kids: the tokens that may follow it, the likelier first, each with its probability.

At first the index alone says them; once the draft has ranked what follows the node, both do.
Invariant: of equals the one found first stands first, and the probabilities sum to at most 1.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.estimate import draft_features, index_features, weighed
from ouroboros.drafters.draft_tree.index import fill_path, find_occurrences
from ouroboros.drafters.draft_tree.mixture import find_choices
from ouroboros.drafters.draft_tree.noise import position_key
from ouroboros.drafters.draft_tree.state import (
    CHOICES,
    DRAFT,
    DRAFT_FEATURES,
    INDEX_FEATURES,
    JUDGED,
    KIDS,
)


@compiled
def noise_key(s, depth):
    """Return the key of the noise by which the token after a node of that depth is drawn."""
    if not s.noisy:
        return 0
    return position_key(s.seed, s.n - s.start + depth)


@compiled
def _offer(s, token, p, kind):
    """Keep a kid if it is among the best."""
    at = s.best_count
    while at > 0 and s.best_p[at - 1] < p:
        at -= 1
    if at >= s.kids:
        return
    end = min(s.best_count, s.kids - 1)
    for place in range(end, at, -1):
        s.best_token[place] = s.best_token[place - 1]
        s.best_p[place] = s.best_p[place - 1]
        s.best_kind[place] = s.best_kind[place - 1]
    s.best_token[at] = token
    s.best_p[at] = p
    s.best_kind[at] = kind
    s.best_count = end + 1


@compiled
def _keep(s, node):
    """Make the best the node's kids; those that have a node already keep it."""
    base = node * KIDS
    total = 0.0
    for j in range(s.best_count):
        total += s.best_p[j]
        s.best_node[j] = -1
        for old in range(s.kid_count[node]):
            if s.kid_token[base + old] == s.best_token[j]:
                s.best_node[j] = s.kid_node[base + old]
    scale = 1.0 / max(1.0, total)
    for j in range(s.best_count):
        s.kid_token[base + j] = s.best_token[j]
        s.kid_p[base + j] = s.best_p[j] * scale
        s.kid_kind[base + j] = s.best_kind[j]
        s.kid_node[base + j] = s.best_node[j]
    s.kid_count[node] = s.best_count


@compiled
def index_kids(s, m, node):
    """Find a node's kids by the index alone, and remember them as its first."""
    depth = fill_path(s, node)
    find_occurrences(s, m, node)
    find_choices(s, m, node)
    key = noise_key(s, depth)
    s.best_count = 0
    for place in range(s.listed):
        c = s.shortlist[place]
        index_features(s, c, s.choice[c], key)
        p = weighed(s, s.index_weights, INDEX_FEATURES)
        _offer(s, s.choice[c], p, s.choice_kind[c])
    s.kid_count[node] = 0
    _keep(s, node)
    s.first_count[node] = s.kid_count[node]
    for j in range(s.kid_count[node]):
        s.first_token[node * KIDS + j] = s.kid_token[node * KIDS + j]
    s.index_top[node] = s.choice[s.shortlist[0]] if s.listed else -1


@compiled
def choice_of(s, m, token):
    """Return which choice of the node looked at last a token is, -1 for none."""
    known = m.slot[token]
    return known % CHOICES if known // CHOICES == s.stamp else -1


@compiled
def _rank_of(s, token, base, ids, shares):
    """Return the draft's rank of a token, -1 where it is not ranked."""
    for rank in range(s.ranks):
        if ids[base + rank] == token and shares[base + rank] > 0.0:
            return rank
    return -1


@compiled
def draft_kids(s, m, node, base, ids, scores, shares):
    """Find a node's kids anew, by the index and by the draft's ranking that begins at `base`."""
    depth = fill_path(s, node)
    find_choices(s, m, node)
    key = noise_key(s, depth)
    s.best_count = 0
    for place in range(s.listed):
        c = s.shortlist[place]
        token = s.choice[c]
        rank = _rank_of(s, token, base, ids, shares)
        index_features(s, c, token, key)
        draft_features(s, c, rank, base, scores, shares)
        p = weighed(s, s.draft_weights, DRAFT_FEATURES)
        _offer(s, token, p, s.choice_kind[c] | JUDGED)
    for rank in range(s.ranks):
        if shares[base + rank] <= 0.0:
            continue
        token = ids[base + rank]
        c = choice_of(s, m, token)
        if c < 0 or s.rank_of[c] >= s.listed:
            index_features(s, c, token, key)
            draft_features(s, c, rank, base, scores, shares)
            p = weighed(s, s.draft_weights, DRAFT_FEATURES)
            _offer(s, token, p, DRAFT)
    _keep(s, node)
    s.draft_top[node] = ids[base]


def consider(s, m, node: int, ranking=None) -> list[tuple[int, list[float]]]:
    """Return each token considered after a node of this step, and its features.

    `ranking` is the draft's of that node, (ids, scores, shares), each [ranks]: without it, what the
    index says alone. Nothing may have been learned since.
    """
    depth = fill_path(s, node)
    find_choices(s, m, node)
    key = noise_key(s, depth)
    tokens = [int(s.choice[s.shortlist[place]]) for place in range(s.listed)]
    if ranking is not None:
        ids, scores, shares = ranking
        own = [int(ids[rank]) for rank in range(s.ranks) if shares[rank] > 0.0]
        tokens += [token for token in own if token not in tokens]
    found = []
    for token in tokens:
        c = choice_of(s, m, token)
        index_features(s, c, token, key)
        if ranking is not None:
            rank = _rank_of(s, token, 0, ids, shares)
            draft_features(s, c, rank, 0, scores, shares)
        found.append((token, [float(x) for x in s.features]))
    return found
