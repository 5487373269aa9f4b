"""The tree: best first by the probability that a node is reached, each child if it is worth it.

Growing begins at the root each time; nodes made before are met again with what is known of them,
so a new estimate anywhere moves, ends or revives whatever is below it. Ties go to the kid that was
pushed first.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.kids import index_kids
from ouroboros.drafters.draft_tree.state import KIDS, NODES


@compiled
def _before(s, a, b):
    """Whether entry a of the heap comes before entry b."""
    if s.heap_p[a] != s.heap_p[b]:
        return s.heap_p[a] > s.heap_p[b]
    return s.heap_tick[a] < s.heap_tick[b]


@compiled
def _swap(s, a, b):
    s.heap_p[a], s.heap_p[b] = s.heap_p[b], s.heap_p[a]
    s.heap_tick[a], s.heap_tick[b] = s.heap_tick[b], s.heap_tick[a]
    s.heap_kid[a], s.heap_kid[b] = s.heap_kid[b], s.heap_kid[a]


@compiled
def push(s, kid, p):
    """Put a kid into the heap."""
    at = s.heap
    s.heap_p[at] = p
    s.heap_kid[at] = kid
    s.heap_tick[at] = s.tick
    s.tick += 1
    s.heap = at + 1
    while at > 0 and _before(s, at, (at - 1) // 2):
        _swap(s, at, (at - 1) // 2)
        at = (at - 1) // 2


@compiled
def pop(s):
    """Take the likeliest kid out of the heap, the first pushed of equals."""
    kid = s.heap_kid[0]
    size = s.heap - 1
    _swap(s, 0, size)
    s.heap = size
    at = 0
    while True:
        best = at
        for below in range(2 * at + 1, min(2 * at + 3, size)):
            if _before(s, below, best):
                best = below
        if best == at:
            return kid
        _swap(s, at, best)
        at = best


@compiled
def make(s, m, token, parent):
    """Make a node and find its kids; return it, or -1 where there is no room."""
    node = s.nodes
    if node >= NODES:
        return -1
    s.nodes = node + 1
    s.token[node] = token
    s.parent[node] = parent
    s.depth[node] = s.depth[parent] + 1 if node else 0
    s.scored[node] = 0
    s.draft_top[node] = -1
    s.fed_place[node] = -1
    index_kids(s, m, node)
    return node


@compiled
def _push_kids(s, node):
    if s.depth[node] >= s.max_depth:
        return
    for kid in range(node * KIDS, node * KIDS + s.kid_count[node]):
        p = s.reach[node] * s.kid_p[kid]
        if p >= s.floor:
            push(s, kid, p)


@compiled
def grow(s, m):
    """Grow the tree anew from the root, which must be made."""
    s.heap = 0
    s.tick = 0
    s.count = 1
    s.order[0] = 0
    s.reach[0] = 1.0
    _push_kids(s, 0)
    while s.heap > 0 and s.count < s.max_nodes:
        kid = pop(s)
        parent = kid // KIDS
        node = s.kid_node[kid]
        if node < 0:
            node = make(s, m, s.kid_token[kid], parent)
            if node < 0:
                return
            s.kid_node[kid] = node
        s.reach[node] = s.reach[parent] * s.kid_p[kid]
        s.kind[node] = s.kid_kind[kid]
        s.chance[node] = s.kid_p[kid]
        s.order[s.count] = node
        s.count += 1
        _push_kids(s, node)
