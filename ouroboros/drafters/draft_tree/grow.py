"""Grow the tree, best first: the child most likely to be reached joins next, if it is worth it.

Each growth starts at the root again and meets the nodes made before with their new estimates, so a
new estimate moves, drops or revives everything below it. Ties go to the child pushed first.

A step is `begin`, `add_rankings` after each draft call, `propose`, and `feedback.learn`.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.candidates import draft_children, phrase_children
from ouroboros.drafters.draft_tree.estimator import set_step_features
from ouroboros.drafters.draft_tree.jit import host_jit, jit
from ouroboros.drafters.draft_tree.node_budget import nodes_to_verify, plan_draft_call, set_floor
from ouroboros.drafters.draft_tree.phrase_index import append
from ouroboros.drafters.draft_tree.state import NODES


@jit
def _precedes(s, a, b):
    """Whether heap entry a comes before entry b."""
    if s.heap_reach[a] != s.heap_reach[b]:
        return s.heap_reach[a] > s.heap_reach[b]
    return s.heap_tick[a] < s.heap_tick[b]


@jit
def _swap(s, a, b):
    s.heap_reach[a], s.heap_reach[b] = s.heap_reach[b], s.heap_reach[a]
    s.heap_tick[a], s.heap_tick[b] = s.heap_tick[b], s.heap_tick[a]
    s.heap_node[a], s.heap_node[b] = s.heap_node[b], s.heap_node[a]
    s.heap_child[a], s.heap_child[b] = s.heap_child[b], s.heap_child[a]


@jit
def push(s, node, child, reach):
    """Push a node's child onto the heap, with its probability of being reached."""
    at = s.heap
    s.heap_reach[at] = reach
    s.heap_node[at] = node
    s.heap_child[at] = child
    s.heap_tick[at] = s.tick
    s.tick += 1
    s.heap = at + 1
    while at > 0 and _precedes(s, at, (at - 1) // 2):
        _swap(s, at, (at - 1) // 2)
        at = (at - 1) // 2


@jit
def pop(s):
    """Remove the likeliest child from the heap; return its parent and its number there."""
    node, child = s.heap_node[0], s.heap_child[0]
    size = s.heap - 1
    _swap(s, 0, size)
    s.heap = size
    at = 0
    while True:
        best = at
        for below in range(2 * at + 1, min(2 * at + 3, size)):
            if _precedes(s, below, best):
                best = below
        if best == at:
            return node, child
        _swap(s, at, best)
        at = best


@jit
def make_node(s, m, token, parent):
    """Make a node with children from phrases; return it, or -1 where all NODES are used."""
    node = s.made
    if node >= NODES:
        return -1
    s.made = node + 1
    s.token[node] = token
    s.parent[node] = parent
    s.depth[node] = s.depth[parent] + 1 if node else 0
    s.scored[node] = 0
    s.top_draft[node] = -1
    s.draft_row[node] = -1
    phrase_children(s, m, node)
    return node


@jit
def _push_children(s, node):
    if s.depth[node] >= s.max_depth:
        return
    for j in range(s.children[node]):
        reach = s.reach[node] * s.child_prob[node, j]
        if reach >= s.floor:
            push(s, node, j, reach)


@jit
def _grow(s, m):
    """Grow the tree from the root, which must be made."""
    s.heap = 0
    s.tick = 0
    s.tree_size = 1
    s.order[0] = 0
    s.reach[0] = 1.0
    _push_children(s, 0)
    while s.heap > 0 and s.tree_size < s.max_nodes:
        parent, j = pop(s)
        node = s.child_node[parent, j]
        if node < 0:
            node = make_node(s, m, s.child_token[parent, j], parent)
            if node < 0:
                return
            s.child_node[parent, j] = node
        s.reach[node] = s.reach[parent] * s.child_prob[parent, j]
        s.kind[node] = s.child_kind[parent, j]
        s.prob[node] = s.child_prob[parent, j]
        s.order[s.tree_size] = node
        s.tree_size += 1
        _push_children(s, node)


@jit
def _next_draft_call(s):
    """Decide which nodes the draft model shall score now, and append them to the draft's tree."""
    count = plan_draft_call(s)
    for i in range(count):
        node = s.to_score[i]
        s.draft_row[node] = s.drafted
        s.draft_token[s.drafted] = s.token[node]
        s.draft_depth[s.drafted] = s.depth[node]
        s.draft_parent[s.drafted] = s.draft_row[s.parent[node]] if node > 0 else -1
        s.drafted += 1
    if count > 0:
        s.calls += 1
        s.spent += s.draft_cost[count]
    return count


@host_jit
def begin(states, m, new_tokens, max_depth, max_draft_depth):
    """Append the sequence's new tokens and grow a tree below the last one.

    Nodes go down to `max_depth`; the draft model can score them down to `max_draft_depth` (below 0:
    none). Return how many nodes the draft model shall score now.
    """
    s = states[0]
    append(s, m, new_tokens)
    s.max_depth = max_depth
    s.max_draft_depth = max_draft_depth
    s.made = 0
    s.calls = 0
    s.drafted = 0
    s.spent = 0.0
    set_floor(s)
    set_step_features(s)
    make_node(s, m, m.text[s.length - 1], -1)
    _grow(s, m)
    return _next_draft_call(s)


@host_jit
def add_rankings(states, m, ids, scores, shares):
    """Take the draft model's rankings after the nodes in `to_score`, each [nodes, ranks], and grow
    anew. Return how many nodes it shall score next."""
    s = states[0]
    s.ranks = ids.shape[1]
    for i in range(s.pending):
        node = s.to_score[i]
        if s.judge or s.children[node] == 0:
            draft_children(s, m, node, ids[i], scores[i], shares[i])
        s.scored[node] = 1
    _grow(s, m)
    return _next_draft_call(s)


@host_jit
def propose(states):
    """Write the part of the tree worth verifying into `out_*`; return its number of nodes."""
    s = states[0]
    size = nodes_to_verify(s)
    for place in range(size):
        node = s.order[place]
        s.place[node] = place
        s.out_token[place] = s.token[node]
        s.out_depth[place] = s.depth[node]
        s.out_parent[place] = s.place[s.parent[node]] if place > 0 else -1
        s.out_kind[place] = s.kind[node] if place > 0 else 0
        s.out_prob[place] = s.prob[node] if place > 0 else 1.0
    return size


@host_jit
def drafted_prefix(states, path):
    """Write the draft rows of a path of the proposal into `kept`, as far as the draft model has
    scored it from the root on; return how many."""
    s = states[0]
    count = 0
    for place in path:
        row = s.draft_row[s.order[place]]
        if row < 0:
            break
        s.kept[count] = row
        count += 1
    return count
