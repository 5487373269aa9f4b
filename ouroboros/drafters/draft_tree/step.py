"""The three calls of a step: `begin`, `scored` after each call of the draft, `learn`.

`begin` and `scored` return how many nodes the draft shall score now; they stand in `ask`, and in
`fed_token` behind those that it scored before. 0 says that the tree is as it shall be verified:
`propose` lays it out.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled, directly
from ouroboros.drafters.draft_tree.estimate import set_odds
from ouroboros.drafters.draft_tree.grow import grow, make
from ouroboros.drafters.draft_tree.index import append
from ouroboros.drafters.draft_tree.kids import draft_kids
from ouroboros.drafters.draft_tree.worth import ask, set_floor, verified


@compiled
def _ask(s):
    """Decide what the draft shall score, and note it as fed."""
    count = ask(s)
    for i in range(count):
        node = s.ask[i]
        s.fed_place[node] = s.fed
        s.fed_token[s.fed] = s.token[node]
        s.fed_depth[s.fed] = s.depth[node]
        s.fed_parent[s.fed] = s.fed_place[s.parent[node]] if node > 0 else -1
        s.fed += 1
    if count > 0:
        s.calls += 1
        s.spent += s.call[count]
    return count


@directly
def begin(states, m, fresh, max_depth, draft_depth):
    """Take in the sequence's next tokens and grow a tree below its last.

    No node stands deeper than `max_depth`; the draft can score nodes to `draft_depth` (below 0:
    none).
    """
    s = states[0]
    append(s, m, fresh)
    s.max_depth = max_depth
    s.draft_depth = draft_depth
    s.nodes = 0
    s.calls = 0
    s.fed = 0
    s.spent = 0.0
    set_floor(s)
    set_odds(s)
    make(s, m, m.text[s.n - 1], -1)
    grow(s, m)
    return _ask(s)


@directly
def scored(states, m, ranks, ids, scores, shares):
    """Take in the draft's ranking of what follows the nodes in `ask`, `ranks` tokens a node, and
    grow anew."""
    s = states[0]
    s.ranks = ranks
    for i in range(s.asked):
        node = s.ask[i]
        if s.judge or s.kid_count[node] == 0:
            draft_kids(s, m, node, i * s.ranks, ids, scores, shares)
        s.scored[node] = 1
    grow(s, m)
    return _ask(s)


@directly
def propose(states):
    """Lay out the part of the tree that is worth verifying; return how many nodes it has."""
    s = states[0]
    size = verified(s)
    for place in range(size):
        node = s.order[place]
        s.place[node] = place
        s.out_token[place] = s.token[node]
        s.out_depth[place] = s.depth[node]
        s.out_parent[place] = s.place[s.parent[node]] if place > 0 else -1
        s.out_kind[place] = s.kind[node] if place > 0 else 0
        s.out_chance[place] = s.chance[node] if place > 0 else 1.0
    return size


@directly
def read_of(states, path):
    """Return how many nodes of a path of the proposal, from its root on, the draft has read; where
    they stand among those fed is in `read`."""
    s = states[0]
    count = 0
    for place in path:
        at = s.fed_place[s.order[place]]
        if at < 0:
            break
        s.read[count] = at
        count += 1
    return count
