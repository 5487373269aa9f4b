"""What a verified tree teaches: predictions to recycle, and how often each source was right."""

from __future__ import annotations

from ouroboros.drafters.draft_tree.compiled import compiled, directly
from ouroboros.drafters.draft_tree.index import fill_path
from ouroboros.drafters.draft_tree.recycling import recycle
from ouroboros.drafters.draft_tree.state import KIDS, SIZES

KEEP = 0.95  # what an observation counts for after one more
HITS = 0.5, 0.7  # first guesses at the hit rates of index and draft,
TRIALS = 5.0  # and what they count for, in observations
FINDS = 0.5  # first guess at how often the draft finds a token that the index does not know
RATE = 2.0  # first guess at tokens per cost,
COST = 4.0  # and what it counts for, in cost
EXPECTED = 5.0  # what the first guess, that estimates are right, counts for, in tokens
KEEP_TOKENS = 0.97  # what a step's tokens count for after one more step
RATES = (
    "tokens", "cost", "index_hits", "index_trials", "draft_hits", "draft_trials", "finds",
    "find_trials", "accepted", "expected",
)  # fmt: skip


def forget(s) -> None:
    """Begin with the first guesses."""
    s.tokens, s.cost = RATE * COST, COST
    s.index_hits, s.index_trials = HITS[0] * TRIALS, TRIALS
    s.draft_hits, s.draft_trials = HITS[1] * TRIALS, TRIALS
    s.finds, s.find_trials = FINDS * TRIALS, TRIALS
    s.accepted = s.expected = EXPECTED


@compiled
def _hit(s, node, truth):
    """Take in what the target said at a node that was kept."""
    if s.index_top[node] >= 0:
        s.index_hits = KEEP * s.index_hits + (1.0 if s.index_top[node] == truth else 0.0)
        s.index_trials = KEEP * s.index_trials + 1.0
    if s.draft_top[node] < 0:
        return
    s.draft_hits = KEEP * s.draft_hits + (1.0 if s.draft_top[node] == truth else 0.0)
    s.draft_trials = KEEP * s.draft_trials + 1.0
    base = node * KIDS
    for j in range(s.first_count[node]):
        if s.first_token[base + j] == truth:
            return
    found = 0.0
    for j in range(s.kid_count[node]):
        if s.kid_token[base + j] == truth:
            found = 1.0
    s.finds = KEEP * s.finds + found
    s.find_trials = KEEP * s.find_trials + 1.0


@compiled
def _compare(s, size, accepted):
    """Compare what a tree was thought to hold with what was accepted of it, in tokens."""
    expected = 0.0
    for place in range(1, size):
        expected += s.reach[s.order[place]]
    guess = (1.0 - KEEP_TOKENS) * EXPECTED  # it counts for ever: after empty trees as at first
    s.expected = KEEP_TOKENS * s.expected + guess + expected
    s.accepted = KEEP_TOKENS * s.accepted + guess + accepted


@directly
def learn(states, m, size, chosen, path):
    """Learn from the first `size` nodes of `order`: `chosen[i]` is the target's token after node i
    of them, `path` the nodes kept, root first."""
    s = states[0]
    step = 0
    for place in range(size):
        node = s.order[place]
        if step < len(path) and path[step] == place:
            step += 1
            _hit(s, node, chosen[place])
        elif s.recycle and chosen[place] >= 0:
            recycle(s, m, fill_path(s, node), chosen[place])
    _compare(s, size, len(path) - 1.0)
    s.tokens += float(len(path))
    s.cost += s.verify[min(size, SIZES - 1)] + s.spent
