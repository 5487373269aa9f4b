"""The tokens that may follow a node, and its children: the most probable of them.

Phrases alone propose candidates at first; once the draft model has ranked the tokens after the
node, both do. A candidate's share is that of a PPM mixture over match lengths k:

    p_k(t) = (c_k(t) + STRENGTH p_{k-1}(t)) / (C_k + STRENGTH),   p_0 = 0

c_k(t) sums the weights of the occurrences that match at least k tokens and continue with t, C_k
those of all tokens. The weight of an occurrence is FADE to the power of how many are newer.

Invariant: ties keep the order of discovery, and a node's child probabilities sum to at most 1.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.estimator import (
    N_DRAFT,
    N_PHRASE,
    position_key,
    probability,
    set_draft_features,
    set_phrase_features,
)
from ouroboros.drafters.draft_tree.jit import jit
from ouroboros.drafters.draft_tree.phrase_index import (
    fill_path,
    find_occurrences,
    newest_recycled,
    previous_recycled,
    recycled_match,
    recycled_token,
    token_at,
)
from ouroboros.drafters.draft_tree.state import (
    CANDIDATES,
    DRAFT,
    JUDGED,
    LEVELS,
    ORDERS,
    PHRASE,
    RECENT,
    RECYCLED,
    SHORTLIST,
)

STRENGTH = 1.5
FADE = 0.95
RECYCLED_WEIGHT = 1.5


def fill_tables(s) -> None:
    """Fill the mixture's tables: weights by age, and the level in ORDERS of each match length."""
    for age in range(CANDIDATES):
        s.recency[age] = FADE**age
    for length in range(len(s.level_of)):
        s.level_of[length] = sum(length >= order for order in ORDERS) - 1


@jit
def _count(s, m, token, length, kind, weight):
    """Count one occurrence that continues with a token."""
    known = m.slot[token]
    if known // CANDIDATES == s.stamp:
        c = known % CANDIDATES
    else:
        c = s.candidates
        s.candidates = c + 1
        m.slot[token] = s.stamp * CANDIDATES + c
        s.candidate[c] = token
        s.candidate_match[c] = 0
        s.candidate_kind[c] = 0
        for level in range(LEVELS):
            s.weight[c, level] = 0.0
    s.candidate_kind[c] = s.candidate_kind[c] | kind
    s.candidate_match[c] = max(s.candidate_match[c], length)
    if length > s.longest:
        s.longest = length
        s.longest_next = token
    level = s.level_of[length]
    s.weight[c, level] += weight
    s.total[level] += weight
    s.top_level = max(s.top_level, level)


@jit
def _mix_shares(s):
    """Turn the candidates' weights into shares, by the formula of the PPM mixture."""
    for level in range(s.top_level - 1, -1, -1):
        s.total[level] += s.total[level + 1]
    for c in range(s.candidates):
        for level in range(s.top_level - 1, -1, -1):
            s.weight[c, level] += s.weight[c, level + 1]
        share = 0.0
        for level in range(s.top_level + 1):
            share = (s.weight[c, level] + STRENGTH * share) / (s.total[level] + STRENGTH)
        s.share[c] = share


@jit
def _fill_shortlist(s):
    """List the candidates with the largest shares, in falling order."""
    s.listed = 0
    for c in range(s.candidates):
        s.candidate_rank[c] = SHORTLIST
        at = s.listed
        while at > 0 and s.share[s.shortlist[at - 1]] < s.share[c]:
            at -= 1
        if at < SHORTLIST:
            end = min(s.listed, SHORTLIST - 1)
            for place in range(end, at, -1):
                s.shortlist[place] = s.shortlist[place - 1]
            s.shortlist[at] = c
            s.listed = end + 1
    for place in range(s.listed):
        s.candidate_rank[s.shortlist[place]] = place


@jit
def find_candidates(s, m, node):
    """Find the tokens that phrases and recycled predictions propose after a node, with shares.

    `path` and the node's occurrences must be filled.
    """
    s.stamp += 1
    s.candidates = 0
    s.longest = 0
    s.longest_next = -1
    s.top_level = 0
    for level in range(LEVELS):
        s.total[level] = 0.0
    for age in range(s.occurrences[node]):
        token = token_at(s, m, s.occurrence[node, age] + 1)
        if token >= 0:
            _count(s, m, token, s.match[node, age], PHRASE, s.recency[age])
    if s.recycle:
        number = newest_recycled(s, m, s.token[node])
        age = 0
        while number > 0 and age < RECENT:
            length = recycled_match(s, m, number, s.depth[node])
            weight = RECYCLED_WEIGHT * s.recency[age]
            _count(s, m, recycled_token(m, number), length, RECYCLED, weight)
            number = previous_recycled(s, m, number)
            age += 1
    _mix_shares(s)
    _fill_shortlist(s)


@jit
def candidate_of(s, m, token):
    """Return the number of a token among the present node's candidates, -1 if it is none."""
    known = m.slot[token]
    return known % CANDIDATES if known // CANDIDATES == s.stamp else -1


@jit
def noise_key(s, depth):
    """Return the key of the noise that samples the token after a node of that depth."""
    if not s.noisy:
        return 0
    return position_key(s.seed, s.length - s.start + depth)


@jit
def _rank_of(s, token, ids, shares):
    """Return the draft model's rank of a token, -1 where it is not ranked."""
    for rank in range(s.ranks):
        if ids[rank] == token and shares[rank] > 0.0:
            return rank
    return -1


@jit
def _offer(s, token, p, kind):
    """Insert a child into the best ones, if it is among them."""
    at = s.best
    while at > 0 and s.best_prob[at - 1] < p:
        at -= 1
    if at >= s.max_children:
        return
    end = min(s.best, s.max_children - 1)
    for place in range(end, at, -1):
        s.best_token[place] = s.best_token[place - 1]
        s.best_prob[place] = s.best_prob[place - 1]
        s.best_kind[place] = s.best_kind[place - 1]
    s.best_token[at] = token
    s.best_prob[at] = p
    s.best_kind[at] = kind
    s.best = end + 1


@jit
def _keep_best(s, node):
    """Make the best ones the node's children; tokens that were children keep their nodes."""
    total = 0.0
    for j in range(s.best):
        total += s.best_prob[j]
        s.best_node[j] = -1
        for old in range(s.children[node]):
            if s.child_token[node, old] == s.best_token[j]:
                s.best_node[j] = s.child_node[node, old]
    scale = 1.0 / max(1.0, total)
    for j in range(s.best):
        s.child_token[node, j] = s.best_token[j]
        s.child_prob[node, j] = s.best_prob[j] * scale
        s.child_kind[node, j] = s.best_kind[j]
        s.child_node[node, j] = s.best_node[j]
    s.children[node] = s.best


@jit
def phrase_children(s, m, node):
    """Find a new node's children from phrases alone."""
    depth = fill_path(s, node)
    find_occurrences(s, m, node)
    find_candidates(s, m, node)
    key = noise_key(s, depth)
    s.best = 0
    for place in range(s.listed):
        c = s.shortlist[place]
        set_phrase_features(s, c, s.candidate[c], key)
        p = probability(s, s.phrase_weights, N_PHRASE)
        _offer(s, s.candidate[c], p, s.candidate_kind[c])
    s.children[node] = 0
    _keep_best(s, node)
    s.phrase_children[node] = s.children[node]
    for j in range(s.children[node]):
        s.phrase_child[node, j] = s.child_token[node, j]
    s.top_phrase[node] = s.candidate[s.shortlist[0]] if s.listed else -1


@jit
def draft_children(s, m, node, ids, scores, shares):
    """Find a node's children anew from phrases and the draft model's ranking after it, [ranks]."""
    depth = fill_path(s, node)
    find_candidates(s, m, node)
    key = noise_key(s, depth)
    s.best = 0
    for place in range(s.listed):
        c = s.shortlist[place]
        token = s.candidate[c]
        set_phrase_features(s, c, token, key)
        set_draft_features(s, c, _rank_of(s, token, ids, shares), scores, shares)
        p = probability(s, s.draft_weights, N_DRAFT)
        _offer(s, token, p, s.candidate_kind[c] | JUDGED)
    for rank in range(s.ranks):
        if shares[rank] <= 0.0:
            continue
        token = ids[rank]
        c = candidate_of(s, m, token)
        if c < 0 or s.candidate_rank[c] >= s.listed:
            set_phrase_features(s, c, token, key)
            set_draft_features(s, c, rank, scores, shares)
            p = probability(s, s.draft_weights, N_DRAFT)
            _offer(s, token, p, DRAFT)
    _keep_best(s, node)
    s.top_draft[node] = ids[0]


def considered(s, m, node: int, ranking=None) -> list[tuple[int, list[float]]]:
    """Return each token considered after a node of this step, with its features.

    `ranking` is the draft model's after the node, (ids, scores, shares), each [ranks]; None: from
    phrases alone. Valid until the next `learn`.
    """
    key = noise_key(s, fill_path(s, node))
    find_candidates(s, m, node)
    tokens = [int(s.candidate[s.shortlist[place]]) for place in range(s.listed)]
    if ranking is not None:
        ids, scores, shares = ranking
        ranked = [int(ids[rank]) for rank in range(s.ranks) if shares[rank] > 0.0]
        tokens += [token for token in ranked if token not in tokens]
    found = []
    for token in tokens:
        c = candidate_of(s, m, token)
        set_phrase_features(s, c, token, key)
        if ranking is not None:
            set_draft_features(s, c, _rank_of(s, token, ids, shares), scores, shares)
        found.append((token, [float(x) for x in s.features]))
    return found
