"""What is worth its cost: which nodes join the tree, a draft call, how many nodes to verify.

With tokens as the gain and target calls as the cost, the best rule continues exactly where an
action gains more tokens than its cost would buy at the average rate (renewal reward; Dinkelbach
1967 for ratios). Decisions depend on counts and estimates, never on a clock, so runs repeat.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.jit import jit
from ouroboros.drafters.draft_tree.state import MAX_CALLS, NODES, SIZES

MAX_PHRASE_HITS = 0.75  # the phrases' hit rate counts as at most this
MIN_TRUST = 0.2  # estimates count for at least this share
MIN_REACH = 0.01  # nodes reached less likely than this are left out,
MIN_WORTH = 0.8  # and those worth less than this share of their cost
CALL_FACTOR = 2.5  # a draft call is worth this many times its immediate gain: it leads to others


@jit
def rate(s):
    """Return the tokens per cost so far."""
    return s.tokens / s.cost


@jit
def set_floor(s):
    """Set the step's trust in its estimates, and the least probability at which a node joins.

    Trees collect overestimates, most of all on texts unlike those of the fit; so estimates count
    by the share of the tokens expected of earlier trees that was accepted.
    """
    s.trust = min(max(s.accepted / s.expected, MIN_TRUST), 1.0)
    s.floor = max(MIN_REACH, MIN_WORTH * rate(s) * s.node_cost / s.trust)


@jit
def _unexplained(s, node):
    """Return the probability that the target's token is none of a node's children."""
    known = 0.0
    for j in range(s.children[node]):
        known += s.child_prob[node, j]
    return 1.0 - known


@jit
def _add_hoped(s, size, reach, there):
    """Insert a hoped-for node among the first `size` of `likely`; return the new size.

    It is in the tree with probability `there`, and is then reached with probability `reach`.
    """
    if size >= NODES:
        return size
    at = size
    while at > 1 and s.likely[at - 1] < reach:
        s.likely[at] = s.likely[at - 1]
        s.there[at] = s.there[at - 1]
        at -= 1
    s.likely[at] = reach
    s.there[at] = there
    return size + 1


@jit
def _list_tree(s):
    """Fill `likely` with the tree's nodes."""
    for place in range(s.tree_size):
        s.likely[place] = s.reach[s.order[place]]
        s.there[place] = 1.0


@jit
def _best_size(s, size):
    """Return how many of the first `size` of `likely` pay best to verify, and their worth in
    tokens: expected tokens - rate x cost of verifying them."""
    nodes = 1.0
    value = 0.0
    most = -rate(s) * s.verify_cost[1]
    best = 1
    for place in range(1, size):
        nodes += s.there[place]
        value += s.there[place] * s.likely[place] * s.trust
        if nodes > s.max_nodes:
            break
        whole = min(int(nodes), SIZES - 2)
        part = min(nodes - whole, 1.0)
        cost = s.verify_cost[whole] + part * (s.verify_cost[whole + 1] - s.verify_cost[whole])
        worth = value - rate(s) * cost
        if worth >= most:
            most = worth
            best = place + 1
    return best, most


@jit
def nodes_to_verify(s):
    """Return how many nodes of `order` pay best to verify."""
    _list_tree(s)
    return _best_size(s, s.tree_size)[0]


@jit
def plan_draft_call(s):
    """List in `to_score` the nodes that the draft model shall score next; return how many.

    They are the likeliest unscored nodes, as many as pay best; 0 where no call pays. Where phrases
    are silent or wrong, the draft model may find the token, and phrases then continue from it: the
    call must cost less than what that adds to the tree, after the cost of verifying it.
    """
    s.pending = 0
    if s.calls >= MAX_CALLS:
        return 0
    size = s.tree_size
    _list_tree(s)
    before = _best_size(s, size)[1]
    finds = s.finds / s.find_trials
    hits = min(s.phrase_hits / s.phrase_trials, MAX_PHRASE_HITS)
    count = 0
    best = 0.0
    for place in range(s.tree_size):
        node = s.order[place]
        depth = s.depth[node]
        if s.scored[node] or depth >= s.max_depth or depth > s.max_draft_depth:
            continue
        reach = s.reach[node] * finds
        if count >= s.draft_nodes or reach <= s.floor:
            break
        s.to_score[count] = node
        count += 1
        if s.judge or s.children[node] == 0:
            there = _unexplained(s, node)
            while there > 0.0 and reach > s.floor and depth < s.max_depth:
                size = _add_hoped(s, size, reach, there)
                reach *= hits
                depth += 1
        gain = _best_size(s, size)[1] - before
        worth = CALL_FACTOR * gain - rate(s) * s.draft_cost[min(count, SIZES - 1)]
        if worth > best:
            best = worth
            s.pending = count
    return s.pending
