"""The phrase index: earlier occurrences of a node's token, with their match lengths.

It searches the text (prompt and output) and recycled predictions: tokens that the target predicted
after rejected nodes, each stored with the tokens before it.

An occurrence has match length k if the k tokens that end there equal the k tokens that end at the
node. Lengths are computed from parent to child: if the parent's token occurs at p - 1 with match
length k, the child's at p has match length k + 1. Nodes on the *path*, from the root to the node,
count as occurrences too, so loops are continued. Position p < `length` is `text[p]`; the root is at
`length` - 1, and the path's node of depth d at `length` - 1 + d.
"""

from __future__ import annotations

import numpy as np

from ouroboros.drafters.draft_tree import state
from ouroboros.drafters.draft_tree.state import jit

MAX_STEPS = 128  # most entries visited in the hash chain of a pair of tokens


@jit
def _pair_slot(before, token):
    """Return the hash slot of a pair of consecutive tokens."""
    return (np.int64(before) * 1_000_003 + np.int64(token)) % state.PAIRS


@jit
def append(s, m, tokens):
    """Append tokens to the text and index them. No bounds checks: callers size the arrays."""
    for token in tokens:
        at = s.length
        m.text[at] = token
        m.previous[at] = m.previous_pair[at] = -1
        if token >= 0:
            m.previous[at] = m.newest[token]
            m.newest[token] = at
            if at > 0 and m.text[at - 1] >= 0:
                slot = _pair_slot(m.text[at - 1], token)
                m.previous_pair[at] = m.newest_pair[slot]
                m.newest_pair[slot] = at
        s.length = at + 1


@jit
def fill_path(s, node):
    """Write the tokens from the root to a node into `path`; return the node's depth."""
    depth = s.depth[node]
    at = node
    for place in range(depth, -1, -1):
        s.path[place] = s.token[at]
        at = s.parent[at]
    return depth


@jit
def token_at(s, m, position):
    """Return the token at a position of the text or of the path; -1 for a negative position."""
    if position >= s.length:
        return s.path[position - s.length + 1]
    if position < 0:
        return -1
    return m.text[position]


@jit
def _common_suffix(s, m, a, b):
    """Return how many tokens up to positions `a` and `b` (both included) match, at most LONGEST."""
    count = 0
    while count < state.LONGEST:
        token = token_at(s, m, a - count)
        if token < 0 or token != token_at(s, m, b - count):
            break
        count += 1
    return count


@jit
def _add_occurrence(s, m, node, position, pointer):
    """Add an occurrence of a node's token at `position`, with its match length. Search the parent's
    occurrences from index `pointer` on; return where the next search starts."""
    count = s.occurrences[node]
    length = 0
    if node == 0:
        length = _common_suffix(s, m, position - 1, s.length - 2)
    else:
        parent = s.parent[node]
        size = s.occurrences[parent]
        while pointer < size and s.occurrence[parent, pointer] > position - 1:
            pointer += 1
        if pointer < size and s.occurrence[parent, pointer] == position - 1:
            length = s.match[parent, pointer]
        elif position - 1 < s.complete_from[parent]:
            length = _common_suffix(s, m, position - 1, s.length - 2 + s.depth[node])
    s.occurrence[node, count] = position
    s.match[node, count] = min(length + 1, state.LONGEST)
    s.occurrences[node] = count + 1
    return pointer


@jit
def find_occurrences(s, m, node):
    """List the occurrences of a node's token in `occurrence`, newest first.

    The caller fills `path` and the parent's list first. The last token of the text is skipped. If
    there are earlier sequences, up to OLDER more are added whose previous token matches too.
    """
    token = s.token[node]
    s.occurrences[node] = 0
    s.complete_from[node] = 0
    limit = state.OCCURRENCES if s.start == 0 else state.WITH_HISTORY
    pointer = 0
    for place in range(s.depth[node] - 1, -1, -1):
        if s.path[place] == token and s.occurrences[node] < limit:
            pointer = _add_occurrence(s, m, node, s.length - 1 + place, pointer)
    position = m.newest[token]
    if position == s.length - 1:
        position = m.previous[position]
    while position >= 0 and s.occurrences[node] < limit:
        pointer = _add_occurrence(s, m, node, position, pointer)
        position = m.previous[position]
    if s.occurrences[node] < limit:
        return
    s.complete_from[node] = s.occurrence[node, limit - 1]
    before = token_at(s, m, s.length - 2 + s.depth[node])
    if s.start == 0 or position < 0 or before < 0:
        return
    older, steps = m.newest_pair[_pair_slot(before, token)], 0
    while older >= 0 and steps < MAX_STEPS and s.occurrences[node] < limit + state.OLDER:
        if older <= position and m.text[older] == token and m.text[older - 1] == before:
            pointer = _add_occurrence(s, m, node, older, pointer)
        older = m.previous_pair[older]
        steps += 1


@jit
def recycle(s, m, depth, prediction):
    """Store `prediction`, the target's token after the node at `depth` of `path`."""
    number = s.recycled + 1
    row = number % state.RING
    for back in range(state.CONTEXT):
        m.ring[row, back] = token_at(s, m, s.length - 1 + depth - back)
    m.ring[row, state.CONTEXT] = prediction
    m.ring[row, state.CONTEXT + 1] = m.newest_recycled[s.path[depth]]
    m.newest_recycled[s.path[depth]] = number
    s.recycled = number


@jit
def store_ranking(s, m, depth, ids, shares):
    """Store the target's ranking after the node at `depth` of `path`: its RUNNERS most probable
    tokens, and their probabilities."""
    number = s.rankings + 1
    row = number % state.RANKINGS
    for back in range(state.CONTEXT):
        m.ranking_context[row, back] = token_at(s, m, s.length - 1 + depth - back)
    m.ranking_context[row, state.CONTEXT] = m.newest_ranking[s.path[depth]]
    m.newest_ranking[s.path[depth]] = number
    for place in range(state.RUNNERS):
        m.ranking_ids[row, place] = ids[place]
        m.ranking_shares[row, place] = shares[place]
    s.rankings = number


@jit
def context_match(s, m, context, depth):
    """Return how many tokens of `context` (nearest first) equal the path's tokens from `depth`
    backwards, before the first mismatch; at most CONTEXT."""
    for back in range(state.CONTEXT):
        token = context[back]
        if token < 0 or token != token_at(s, m, s.length - 1 + depth - back):
            return back
    return state.CONTEXT
