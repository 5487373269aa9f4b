"""What is worth its cost: a call of the draft, and how much of the tree to verify.

With tokens as the gain and target calls as the cost, the best rule goes on exactly where a call
gains more than it costs at the usual rate of tokens per cost (renewal reward; Dinkelbach 1967 for
ratios). Decisions depend on counts and estimates alone, never on a clock, so a run can be repeated.
"""

from __future__ import annotations

from ouroboros.drafters.growth.compiled import compiled
from ouroboros.drafters.growth.state import CALLS, KIDS, SIZES

MOST_HITS = 0.75  # the index's hit rate counts as at most this
LEAST_REACH = 0.01  # children reached more rarely than this are left out
SHARE_OF_COST = 0.8  # and those worth less than this share of what they cost


@compiled
def rate(s):
    """Return the tokens per cost so far."""
    return s.tokens / s.cost


@compiled
def set_floor(s):
    """Set how likely a node must be reached to be in the tree."""
    s.floor = max(LEAST_REACH, SHARE_OF_COST * rate(s) * s.slope)


@compiled
def _gain(s, node):
    """Return what the draft may find after a node that the index does not know, in tokens: one, and
    those by which the index then goes on."""
    known = 0.0
    count = s.kid_count[node]
    if count > 0 and not s.judge:
        return 0.0
    for kid in range(node * KIDS, node * KIDS + count):
        known += s.kid_p[kid]
    found = s.finds / s.find_trials
    hits = min(s.index_hits / s.index_trials, MOST_HITS)
    return s.reach[node] * (1.0 - known) * found / (1.0 - hits)


@compiled
def ask(s):
    """List in `ask` the nodes that the draft shall score next, a parent before its children.

    They are the likeliest not scored yet, as many as pay best; return how many, 0 where no call
    pays.
    """
    s.asked = 0
    if s.calls >= CALLS:
        return 0
    value = 0.0
    best = 0.0
    count = 0
    for place in range(s.count):
        node = s.order[place]
        depth = s.depth[node]
        if s.scored[node] or depth >= s.max_depth or depth > s.draft_depth:
            continue
        if count >= s.ask_limit:
            break
        s.ask[count] = node
        count += 1
        value += _gain(s, node)
        worth = value - rate(s) * s.call[min(count, SIZES - 1)]
        if worth > best:
            best = worth
            s.asked = count
    return s.asked


@compiled
def verified(s):
    """Return how many nodes of `order` to verify: as many as pay best."""
    value = 0.0
    best = -rate(s) * s.verify[1]
    size = 1
    for place in range(1, s.count):
        value += s.reach[s.order[place]]
        worth = value - rate(s) * s.verify[min(place + 1, SIZES - 1)]
        if worth >= best:
            best = worth
            size = place + 1
    return size
