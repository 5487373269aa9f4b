"""Which tokens follow a node, and with what share: a PPM mixture over match lengths.

p_k(t) = (c_k(t) + STRENGTH p_{k-1}(t)) / (C_k + STRENGTH) over the orders k, with c_k(t) the weight
of the occurrences that match at least k tokens and go on with t, C_k their sum, p_0 = 0. Weights
fade with age: FADE to the power of how many are newer.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.index import token_at
from ouroboros.drafters.draft_tree.recycling import before, choice_of, newest_after, shared
from ouroboros.drafters.draft_tree.state import (
    CHOICES,
    OCCURRENCES,
    ORDERS,
    RECENT,
    RECYCLED,
    SHORTLIST,
    TEXT,
)

LEVELS = len(ORDERS)
STRENGTH = 1.5
FADE = 0.95
RECYCLED_WEIGHT = 1.5


def prepare(s) -> None:
    """Fill the tables that the mixture reads: weights by age, and the order of each match."""
    for age in range(CHOICES):
        s.recency[age] = FADE**age
    for length in range(len(s.bucket)):
        s.bucket[length] = sum(length >= order for order in ORDERS) - 1


@compiled
def _count(s, m, token, length, kind, weight):
    """Count one occurrence that goes on with a token."""
    known = m.slot[token]
    if known // CHOICES == s.stamp:
        c = known % CHOICES
    else:
        c = s.choices
        s.choices = c + 1
        m.slot[token] = s.stamp * CHOICES + c
        s.choice[c] = token
        s.choice_match[c] = 0
        s.choice_kind[c] = 0
        for level in range(LEVELS):
            s.weight[c * LEVELS + level] = 0.0
    s.choice_kind[c] = s.choice_kind[c] | kind
    s.choice_match[c] = max(s.choice_match[c], length)
    if length > s.longest:
        s.longest = length
        s.longest_next = token
    level = s.bucket[length]
    s.weight[c * LEVELS + level] += weight
    s.total[level] += weight
    s.top_order = max(s.top_order, level)


@compiled
def _mix(s):
    """Turn the weights of each choice into its share."""
    for level in range(s.top_order - 1, -1, -1):
        s.total[level] += s.total[level + 1]
    for c in range(s.choices):
        base = c * LEVELS
        for level in range(s.top_order - 1, -1, -1):
            s.weight[base + level] += s.weight[base + level + 1]
        share = 0.0
        for level in range(s.top_order + 1):
            share = (s.weight[base + level] + STRENGTH * share) / (s.total[level] + STRENGTH)
        s.share[c] = share


@compiled
def list_choices(s):
    """Put the choices with the largest shares into `shortlist`, the first found first of equals."""
    s.listed = 0
    for c in range(s.choices):
        s.rank_of[c] = SHORTLIST
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
        s.rank_of[s.shortlist[place]] = place


@compiled
def find_choices(s, m, node):
    """Find what may follow a node, by its map and by what was recycled; `path` must be filled."""
    depth = s.depth[node]
    s.stamp += 1
    s.choices = 0
    s.longest = 0
    s.longest_next = -1
    s.top_order = 0
    for level in range(LEVELS):
        s.total[level] = 0.0
    base = node * OCCURRENCES
    for age in range(s.occurrences[node]):
        token = token_at(s, m, s.position[base + age] + 1)
        if token >= 0:
            _count(s, m, token, s.match[base + age], TEXT, s.recency[age])
    if s.recycle:
        number = newest_after(s, m, s.token[node])
        age = 0
        while number > 0 and age < RECENT:
            length = shared(s, m, number, depth)
            weight = RECYCLED_WEIGHT * s.recency[age]
            _count(s, m, choice_of(m, number), length, RECYCLED, weight)
            number = before(s, m, number)
            age += 1
    _mix(s)
    list_choices(s)
