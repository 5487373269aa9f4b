"""What is worth its cost: a call of the draft, and how much of the tree to verify.

With tokens as the gain and target calls as the cost, the best rule goes on exactly where a call
gains more than it costs at the usual rate of tokens per cost (renewal reward; Dinkelbach 1967 for
ratios). Decisions depend on counts and estimates alone, never on a clock, so a run can be repeated.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.state import CALLS, KIDS, NODES, SIZES

MOST_HITS = 0.75  # the index's hit rate counts as at most this
LEAST_TRUST = 0.2  # a tree counts for at least this share of what it is thought to hold
LEAST_REACH = 0.01  # children reached more rarely than this are left out
SHARE_OF_COST = 0.8  # and those worth less than this share of what they cost
LEADS_ON = 2.5  # a call is worth this many times what it finds at once: it leads to further calls


@compiled
def rate(s):
    """Return the tokens per cost so far."""
    return s.tokens / s.cost


@compiled
def set_floor(s):
    """Set what a step's estimates are worth, and how likely a node must be reached to be in its
    tree.

    Trees gather overestimates, and the more so on texts unlike those of the fit; so what they hold
    counts by the share that came of what earlier ones were thought to hold.
    """
    s.trust = min(max(s.accepted / s.expected, LEAST_TRUST), 1.0)
    s.floor = max(LEAST_REACH, SHARE_OF_COST * rate(s) * s.slope / s.trust)


@compiled
def _unknown(s, node):
    """Return how likely none of a node's kids is the target's choice."""
    known = 0.0
    for kid in range(node * KIDS, node * KIDS + s.kid_count[node]):
        known += s.kid_p[kid]
    return 1.0 - known


@compiled
def _expect(s, size, p, chance):
    """Put a node that is there with a chance, and is then reached with probability p, among the
    first `size` of `likely`; return how many they are then."""
    if size >= NODES:
        return size
    at = size
    while at > 1 and s.likely[at - 1] < p:
        s.likely[at] = s.likely[at - 1]
        s.there[at] = s.there[at - 1]
        at -= 1
    s.likely[at] = p
    s.there[at] = chance
    return size + 1


@compiled
def _lay_out(s):
    """Put the tree's nodes into `likely`, each there for certain."""
    for place in range(s.count):
        s.likely[place] = s.reach[s.order[place]]
        s.there[place] = 1.0


@compiled
def _best(s, size):
    """Return how many of the first `size` of `likely` pay best to verify, and what they are worth,
    in tokens."""
    nodes = 1.0
    value = 0.0
    most = -rate(s) * s.verify[1]
    count = 1
    for place in range(1, size):
        nodes += s.there[place]
        value += s.there[place] * s.likely[place] * s.trust
        if nodes > s.max_nodes:
            break
        whole = min(int(nodes), SIZES - 2)
        part = min(nodes - whole, 1.0)
        cost = s.verify[whole] + part * (s.verify[whole + 1] - s.verify[whole])
        worth = value - rate(s) * cost
        if worth >= most:
            most = worth
            count = place + 1
    return count, most


@compiled
def ask(s):
    """List in `ask` the nodes that the draft shall score next, a parent before its children.

    They are the likeliest not scored yet, as many as pay best; return how many, 0 where no call
    pays. Where the index is silent or wrong, a call may find the token, and the index then goes on
    from it: what that adds to the tree must be worth the call, after what verifying it costs.
    """
    s.asked = 0
    if s.calls >= CALLS:
        return 0
    size = s.count
    _lay_out(s)
    before = _best(s, size)[1]
    finds = s.finds / s.find_trials
    hits = min(s.index_hits / s.index_trials, MOST_HITS)
    count = 0
    best = 0.0
    for place in range(s.count):
        node = s.order[place]
        depth = s.depth[node]
        if s.scored[node] or depth >= s.max_depth or depth > s.draft_depth:
            continue
        p = s.reach[node] * finds
        if count >= s.ask_limit or p <= s.floor:
            break
        s.ask[count] = node
        count += 1
        if s.judge or s.kid_count[node] == 0:
            unknown = _unknown(s, node)
            while unknown > 0.0 and p > s.floor and depth < s.max_depth:
                size = _expect(s, size, p, unknown)
                p *= hits
                depth += 1
        found = _best(s, size)[1] - before
        worth = LEADS_ON * found - rate(s) * s.call[min(count, SIZES - 1)]
        if worth > best:
            best = worth
            s.asked = count
    return s.asked


@compiled
def verified(s):
    """Return how many nodes of `order` to verify: as many as pay best."""
    _lay_out(s)
    return _best(s, s.count)[0]
