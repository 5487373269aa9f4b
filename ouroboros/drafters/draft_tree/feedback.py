"""Learn from a verified tree: store predictions to recycle, and each source's hit rate."""

from __future__ import annotations

from ouroboros.drafters.draft_tree import state
from ouroboros.drafters.draft_tree.phrase_index import fill_path, recycle
from ouroboros.drafters.draft_tree.state import HostCall, jit

DECAY = 0.95  # weight of earlier observations after each new one
PHRASE_HITS, DRAFT_HITS = 0.5, 0.7  # prior hit rates
TRIALS = 5.0  # weight of these priors, in observations
FINDS = 0.5  # prior rate at which the draft model finds a token that no phrase proposed
RATE, COST = 2.0, 4.0  # prior tokens per cost, and its weight in cost
EXPECTED = 5.0  # weight of the prior that estimates are right, in tokens
TREE_DECAY = 0.97  # weight of earlier trees after each new one


def reset_rates(s) -> None:
    """Return to the priors."""
    s.tokens, s.cost = RATE * COST, COST
    s.phrase_hits, s.phrase_trials = PHRASE_HITS * TRIALS, TRIALS
    s.draft_hits, s.draft_trials = DRAFT_HITS * TRIALS, TRIALS
    s.finds, s.find_trials = FINDS * TRIALS, TRIALS
    s.accepted = s.expected = EXPECTED


@jit
def _learn_hits(s, node, token):
    """Update the hit rates of the sources by the target's token after an accepted node."""
    if s.top_phrase[node] >= 0:
        s.phrase_hits = DECAY * s.phrase_hits + (1.0 if s.top_phrase[node] == token else 0.0)
        s.phrase_trials = DECAY * s.phrase_trials + 1.0
    if s.ranks[node] == 0:
        return
    s.draft_hits = DECAY * s.draft_hits + (1.0 if s.ranked[node, 0] == token else 0.0)
    s.draft_trials = DECAY * s.draft_trials + 1.0
    for j in range(s.phrase_children[node]):
        if s.phrase_child[node, j] == token:
            return
    found = 0.0
    for j in range(s.children[node]):
        if s.child_token[node, j] == token:
            found = 1.0
    s.finds = DECAY * s.finds + found
    s.find_trials = DECAY * s.find_trials + 1.0


@HostCall
def learn(states, m, size, chosen, path):
    """Learn from a proposal of `size` nodes: `chosen[i]` is the target's token after node i (-1:
    unknown), `path` the accepted nodes, root first."""
    s = states[0]
    step = 0
    expected = 0.0
    for place in range(size):
        node = s.order[place]
        if step < len(path) and path[step] == place:
            step += 1
            _learn_hits(s, node, chosen[place])
        elif s.recycle and chosen[place] >= 0:
            recycle(s, m, fill_path(s, node), chosen[place])
        if place > 0:
            expected += s.reach[node]
    prior = (1.0 - TREE_DECAY) * EXPECTED  # added every step, so that the prior never decays
    s.expected = TREE_DECAY * s.expected + prior + expected
    s.accepted = TREE_DECAY * s.accepted + prior + (len(path) - 1.0)
    s.tokens += float(len(path))
    s.cost += s.verify_cost[min(size, state.SIZES - 1)] + s.spent
