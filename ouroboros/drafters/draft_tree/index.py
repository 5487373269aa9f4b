"""The suffix index: where else a node's token stands, and how much of what is before it agrees.

A position's match is how many tokens up to and including it are those up to and including the
node. Maps are made down the tree: a position's match is its predecessor's in the parent's map plus
one. Positions inside the path count too, so a loop goes on by itself.

Position p below `n` is `text[p]`; the root is n - 1, and the path's node of depth d is n - 1 + d.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.state import LONGEST, OCCURRENCES


@compiled
def append(s, m, tokens):
    """Take in the next tokens of the sequence; the arrays must be long enough."""
    for token in tokens:
        at = s.n
        m.text[at] = token
        if token >= 0:
            m.prev[at] = m.head[token]
            m.head[token] = at
        else:
            m.prev[at] = -1
        s.n = at + 1


@compiled
def fill_path(s, node):
    """Write the tokens from the root to a node into `path`; return the node's depth."""
    depth = s.depth[node]
    at = node
    for place in range(depth, -1, -1):
        s.path[place] = s.token[at]
        at = s.parent[at]
    return depth


@compiled
def token_at(s, m, position):
    """Return the token at a position of the text or, beyond the root, of the path; -1 before."""
    if position >= s.n:
        return s.path[position - s.n + 1]
    if position < 0:
        return -1
    return m.text[position]


@compiled
def common(s, m, a, b):
    """Return how many tokens the texts that end at two positions share, up to LONGEST."""
    count = 0
    while count < LONGEST:
        token = token_at(s, m, a - count)
        if token < 0 or token != token_at(s, m, b - count):
            break
        count += 1
    return count


@compiled
def _add(s, m, node, position, pointer):
    """Add an occurrence of a node's token with its match; return where the parent's map stands."""
    base = node * OCCURRENCES
    count = s.occurrences[node]
    length = 0
    if node == 0:
        length = common(s, m, position - 1, s.n - 2)
    else:
        parent = s.parent[node]
        above = parent * OCCURRENCES
        size = s.occurrences[parent]
        while pointer < size and s.position[above + pointer] > position - 1:
            pointer += 1
        if pointer < size:
            if s.position[above + pointer] == position - 1:
                length = s.match[above + pointer]
        elif size == OCCURRENCES:  # older than all that the parent's map holds
            length = common(s, m, position - 1, s.n - 2 + s.depth[node])
    s.position[base + count] = position
    s.match[base + count] = min(length + 1, LONGEST)
    s.occurrences[node] = count + 1
    return pointer


@compiled
def find_occurrences(s, m, node):
    """Fill a node's map, the newest occurrence first; `path` must be filled, the parent's map made.

    Only occurrences with a token after them count.
    """
    depth = s.depth[node]
    token = s.token[node]
    s.occurrences[node] = 0
    pointer = 0
    for place in range(depth - 1, -1, -1):
        if s.path[place] == token and s.occurrences[node] < OCCURRENCES:
            pointer = _add(s, m, node, s.n - 1 + place, pointer)
    position = m.head[token]
    if position == s.n - 1:
        position = m.prev[position]
    while position >= 0 and s.occurrences[node] < OCCURRENCES:
        pointer = _add(s, m, node, position, pointer)
        position = m.prev[position]
