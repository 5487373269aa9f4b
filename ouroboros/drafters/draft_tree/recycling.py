"""Recycled predictions: what the target said at nodes that were not kept, by the tokens before.

A ring of entries, the oldest overwritten: the last CONTEXT tokens of a node's path (the nearest
first), the target's choice, and the number of the entry before with the same last token. Entries
are numbered from 1 on.
"""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled
from ouroboros.drafters.draft_tree.index import token_at
from ouroboros.drafters.draft_tree.state import CONTEXT, ENTRY


@compiled
def recycle(s, m, depth, choice):
    """Remember the target's choice after the node of that depth on the path in `path`."""
    size = len(m.ring) // ENTRY
    number = s.recycled + 1
    base = (number % size) * ENTRY
    last = s.path[depth]
    for back in range(CONTEXT):
        m.ring[base + back] = token_at(s, m, s.n - 1 + depth - back)
    m.ring[base + CONTEXT] = choice
    m.ring[base + CONTEXT + 1] = m.newest[last]
    m.newest[last] = number
    s.recycled = number


@compiled
def newest_after(s, m, token):
    """Return the newest entry after a token, 0 for none."""
    return still(s, m, m.newest[token])


@compiled
def before(s, m, number):
    """Return the entry before this one with the same last token, 0 for none."""
    return still(s, m, m.ring[(number % (len(m.ring) // ENTRY)) * ENTRY + CONTEXT + 1])


@compiled
def still(s, m, number):
    """Return the number of an entry that is still there, else 0."""
    if number <= s.recycled - len(m.ring) // ENTRY:
        return 0
    return number


@compiled
def shared(s, m, number, depth):
    """Return how many tokens an entry shares with the path that ends at `depth`, up to CONTEXT."""
    base = (number % (len(m.ring) // ENTRY)) * ENTRY
    for back in range(CONTEXT):
        token = m.ring[base + back]
        if token < 0 or token != token_at(s, m, s.n - 1 + depth - back):
            return back
    return CONTEXT


@compiled
def choice_of(m, number):
    """Return the target's choice in an entry."""
    return m.ring[(number % (len(m.ring) // ENTRY)) * ENTRY + CONTEXT]
