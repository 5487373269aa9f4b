"""Grow the tree, decide on draft calls and nodes to verify by gain and cost, and learn.

A step calls `begin`, `add_rankings` after each draft call, `propose`, and `learn`.

The tree grows best first: the child with the largest probability of being reached joins next, as
long as it is worth its cost; ties go to the child found first. After new estimates the tree grows
from the root again and reuses existing nodes, so subtrees can move, drop out or return.

Gain is counted in tokens, cost in target calls. The optimal rule takes an action if and only if it
gains more tokens than the same cost gains on average (renewal reward; Dinkelbach 1967 for ratios).
Decisions depend on counts, estimates and given costs, never on a clock.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush

from ouroboros.drafters.draft_tree import state
from ouroboros.drafters.draft_tree.candidates import (
    MIN_RATE,
    find_children,
    learn_calibration,
    log_odds,
    phrase_children,
)
from ouroboros.drafters.draft_tree.phrase_index import append, fill_path, recycle, store_ranking
from ouroboros.drafters.draft_tree.state import HostCall, jit

MAX_PHRASE_HITS = 0.75  # upper limit of the phrases' hit rate in `plan_draft_call`
MIN_TRUST = 0.2  # lower limit of `trust`, the factor on estimated gains
MIN_REACH = 0.01  # nodes with a smaller probability of being reached are left out
MIN_REACH_WITH_HISTORY = 0.001  # the same after earlier sequences
BEYOND_MATCH = 4  # a phrase continues for at most the length of its match + this many tokens
MIN_WORTH = 0.8  # nodes whose gain is below this x their cost are left out
CALL_FACTOR = 0.7  # value of a draft call / its estimated gain, which is too high: calls with high
# estimates are chosen
CHAIN_HITS = 0.4  # share of the draft's misses avoided by ending a chain where it is unsure

DECAY = 0.95  # factor on earlier observations at each new one
PHRASE_HITS, DRAFT_HITS = 0.5, 0.7  # prior hit rates
TRIALS = 5.0  # weight of these priors, in observations
FINDS = 0.7  # prior rate at which the draft model finds a token that no phrase proposed
RATE, COST = 2.0, 4.0  # prior of tokens per unit of cost, and its weight in units of cost
EXPECTED = 5.0  # prior of accepted and expected tokens: estimates are right
TREE_DECAY = 0.97  # factor on earlier trees at each new one


@jit
def tokens_per_cost(s):
    """Return the new tokens per unit of cost so far; in a batch, those of all its sequences."""
    return s.shared_rate if s.shared_rate > 0.0 else s.tokens / s.cost


@jit
def _set_constants(s):
    """Set the constants of a step: log-odds of the hit rates, trust in the estimates, and the
    smallest probability at which a node joins.

    Choosing the best nodes favours overestimates, especially on text unlike that on which the
    weights were fitted. So gains are multiplied by `trust`: accepted / expected tokens so far.
    """
    s.phrase_odds = log_odds(s.phrase_hits / s.phrase_trials, MIN_RATE)
    s.draft_odds = log_odds(s.draft_hits / s.draft_trials, MIN_RATE)
    s.trust = min(max(s.accepted / s.expected, MIN_TRUST), 1.0)
    least = MIN_REACH if s.start == 0 else MIN_REACH_WITH_HISTORY
    s.floor = max(least, MIN_WORTH * tokens_per_cost(s) * s.node_cost / s.trust)


@jit
def _add_possible_node(s, size, reach, present):
    """Insert a node that a draft call may add to the tree into the first `size` entries of
    `likely`, which are sorted; return the new size.

    The call adds the node with probability `present`; it is then reached with probability `reach`.
    """
    if size >= state.NODES:
        return size
    at = size
    while at > 1 and s.likely[at - 1] < reach:
        s.likely[at] = s.likely[at - 1]
        s.present[at] = s.present[at - 1]
        at -= 1
    s.likely[at] = reach
    s.present[at] = present
    return size + 1


@jit
def _list_tree(s):
    """Write the probabilities with which the tree's nodes are reached to `likely`, descending."""
    for place in range(s.tree_size):
        s.likely[place] = s.reach[s.order[place]]
        s.present[place] = 1.0


@jit
def _best_size(s, size):
    """Return (size, worth): how many of the first `size` nodes in `likely` to verify, root
    included, and their worth in tokens, which is expected accepted tokens - `tokens_per_cost` x
    cost of the target call."""
    nodes = 1.0
    value = 0.0
    most = -tokens_per_cost(s) * s.verify_cost[1]
    best = 1
    for place in range(1, size):
        nodes += s.present[place]
        value += s.present[place] * s.likely[place] * s.trust
        if nodes > s.max_nodes:
            break
        whole = min(int(nodes), state.SIZES - 2)
        part = min(nodes - whole, 1.0)
        cost = s.verify_cost[whole] + part * (s.verify_cost[whole + 1] - s.verify_cost[whole])
        worth = value - tokens_per_cost(s) * cost
        if worth >= most:
            most = worth
            best = place + 1
    return best, most


@jit
def _chain_pays(s, node, before):
    """Return whether a chain of draft calls is worth more than `before`, the tree's worth without
    it. The first call scores `node`; each further call scores the token that the last call found.

    A single call may not pay although several do, if the cost of a target call jumps between two
    sizes.
    """
    value = 0.0
    nodes = 1
    above = node
    while above > 0:
        value += s.reach[above]
        nodes += 1
        above = s.parent[above]
    hits = s.draft_hits / s.draft_trials
    hits += CHAIN_HITS * (1.0 - hits)
    reach = s.reach[node]
    most = min(s.max_draft_depth + 1, s.max_depth) - s.depth[node]
    for calls in range(1, min(most, s.max_nodes - nodes, state.MAX_CALLS - s.calls) + 1):
        reach *= hits
        value += reach
        cost = s.verify_cost[nodes + calls] + calls * s.draft_cost[1]
        if s.trust * value - tokens_per_cost(s) * cost > before:
            return True
    return False


@jit
def plan_draft_call(s):
    """List the nodes for the next draft call in `to_score`; return how many (0: no call pays).

    Takes the most probable unscored nodes, as many as maximize gain minus cost. The gain: after
    such a node the draft model may find the target's token if the best phrase is wrong, and phrases
    then continue from it. A call pays if these tokens are worth more than the call and verifying
    them. Outside batches, a call of one node also pays if it begins a chain of calls that pays.
    """
    s.pending = 0
    s.gain = 0.0
    if s.calls >= state.MAX_CALLS:
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
            known = 0.0
            for j in range(s.children[node]):
                if s.child_kind[node, j] & state.PROPOSED:
                    known = max(known, s.child_prob[node, j])
            present = 1.0 - known  # probability that the best phrase is wrong here
            while present > 0.0 and reach > s.floor and depth < s.max_depth:
                size = _add_possible_node(s, size, reach, present)
                reach *= hits
                depth += 1
        gain = _best_size(s, size)[1] - before
        worth = CALL_FACTOR * gain - tokens_per_cost(s) * s.draft_cost[min(count, state.SIZES - 1)]
        if worth > best:
            best = worth
            s.pending = count
            s.gain = gain
    alone = s.shared_rate == 0.0
    if s.pending == 0 and count > 0 and alone and _chain_pays(s, s.to_score[0], before):
        s.pending = 1
    return s.pending


@jit
def make_node(s, m, token, parent):
    """Add a node and list its children from phrases; return it, or -1 if all NODES are in use."""
    node = s.made
    if node >= state.NODES:
        return -1
    s.made = node + 1
    s.token[node] = token
    s.parent[node] = parent
    s.depth[node] = s.depth[parent] + 1 if node else 0
    s.scored[node] = 0
    s.draft_row[node] = -1
    phrase_children(s, m, node)
    return node


@partial(jit, lists=True)
def _push_children(s, heap, ticks, node):
    """Push a node's children onto the heap, numbered from `ticks` to break ties; return the next
    number.

    Errors of the estimates multiply along a phrase. So if m tokens up to the root, or up to the
    nearest ancestor that the draft model has scored, match earlier text, at most m + BEYOND_MATCH
    levels follow below it.
    """
    if node == 0 or s.scored[node]:
        s.room[node] = s.longest_match[node] + BEYOND_MATCH
    else:
        s.room[node] = s.room[s.parent[node]] - 1
    if s.depth[node] < s.max_depth and s.room[node] > 0:
        for j in range(s.children[node]):
            reach = s.reach[node] * s.child_prob[node, j]
            if reach >= s.floor:
                heappush(heap, (-reach, ticks, node, j))
                ticks += 1
    return ticks


@partial(jit, lists=True)
def _grow(s, m):
    """Grow the tree from the root, which must exist as node 0; write its nodes to `order`."""
    s.tree_size = 1
    s.order[0] = 0
    s.reach[0] = 1.0
    heap = [(0.0, 0, 0, 0) for _ in range(0)]
    ticks = _push_children(s, heap, 0, 0)
    while heap and s.tree_size < s.max_nodes:
        reach, _, parent, j = heappop(heap)
        node = s.child_node[parent, j]
        if node < 0:
            node = make_node(s, m, s.child_token[parent, j], parent)
            if node < 0:
                return
            s.child_node[parent, j] = node
        s.reach[node] = -reach
        s.kind[node] = s.child_kind[parent, j]
        s.prob[node] = s.child_prob[parent, j]
        s.order[s.tree_size] = node
        s.tree_size += 1
        ticks = _push_children(s, heap, ticks, node)


@jit
def _next_draft_call(s):
    """Choose the nodes for the next draft call and append them to the draft's tree; return how many
    (0: no call)."""
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


@jit
def _save_text_tree(s):
    """Save the nodes that would be verified, and their cost, if the draft model were not called."""
    _list_tree(s)
    s.saved_size = _best_size(s, s.tree_size)[0]
    s.saved_cost = s.verify_cost[s.saved_size]
    for place in range(s.saved_size):
        node = s.order[place]
        s.place[node] = place
        s.saved_token[place] = s.token[node]
        s.saved_parent[place] = s.place[s.parent[node]] if place > 0 else -1
    s.saved_at = 0
    s.saved_tokens = 0.0
    s.paired = 1


@jit
def _follow_text_tree(s, new_tokens):
    """Follow the saved tree along the sequence's new tokens, which may come in several steps. At
    the first token that is not in the tree, write its tokens and cost to `text_*`, and those of the
    step that saved it to `drafted_*`."""
    for i in range(len(new_tokens)):
        if s.saved_at < 0:
            return
        s.saved_tokens += 1.0
        child = -1
        for place in range(s.saved_at + 1, s.saved_size):
            if s.saved_parent[place] == s.saved_at and s.saved_token[place] == new_tokens[i]:
                child = place
        if child < 0:
            s.text_tokens = s.saved_tokens
            s.text_cost = s.saved_cost
            s.drafted_tokens = s.paired_tokens
            s.drafted_cost = s.paired_cost
        s.saved_at = child


@HostCall
def begin(states, m, new_tokens, max_depth, max_draft_depth):
    """Append the sequence's new tokens and grow a tree below the last token.

    The tree has at most `max_depth` levels below the root; the draft model can score nodes down to
    `max_draft_depth` (negative: none). Return the number of nodes for the first draft call.
    """
    s = states[0]
    _follow_text_tree(s, new_tokens)
    append(s, m, new_tokens)
    s.max_depth = max_depth
    s.max_draft_depth = max_draft_depth
    s.steps += 1
    s.made = 0
    s.calls = 0
    s.drafted = 0
    s.spent = 0.0
    _set_constants(s)
    make_node(s, m, m.text[s.length - 1], -1)
    _grow(s, m)
    s.paired = 0
    count = _next_draft_call(s)
    if count > 0 and s.saved_at < 0:
        _save_text_tree(s)
    return count


@HostCall
def add_rankings(states, m, ids, scores, shares):
    """Store the draft model's ranking after each node in `to_score`; grow the tree again.

    `ids`, `scores` and `shares` are [nodes, ranks], as in `Ranked`. Return the number of nodes for
    the next draft call (0: no call pays).
    """
    s = states[0]
    for i in range(s.pending):
        node = s.to_score[i]
        if s.judge or s.children[node] == 0:
            s.ranks[node] = ids.shape[1]
            for rank in range(s.ranks[node]):
                s.ranked[node, rank] = ids[i, rank]
                s.ranked_score[node, rank] = scores[i, rank]
                s.ranked_share[node, rank] = shares[i, rank]
            fill_path(s, node)
            find_children(s, m, node, s.ranks[node])
        s.scored[node] = 1
    _grow(s, m)
    return _next_draft_call(s)


@HostCall
def decline(states):
    """Cancel the planned draft call: the nodes in `to_score` will not be scored."""
    s = states[0]
    for i in range(s.pending):
        s.draft_row[s.to_score[i]] = -1
    s.drafted -= s.pending
    s.calls -= 1
    s.spent -= s.draft_cost[s.pending]
    s.pending = 0
    if s.paired and s.calls == 0:
        s.saved_at = -1
        s.paired = 0


@HostCall
def offer(states):
    """Write each node's probability of being accepted to `likely`, largest first; return the number
    of nodes, root included."""
    s = states[0]
    _list_tree(s)
    for place in range(s.tree_size):
        s.likely[place] *= s.trust
    return s.tree_size


@HostCall
def propose(states, size):
    """Write the `size` most probable nodes (0: as many as are worth verifying) to the `out_*`
    arrays; return their number."""
    s = states[0]
    if size == 0:
        _list_tree(s)
        size = _best_size(s, s.tree_size)[0]
    for place in range(size):
        node = s.order[place]
        s.place[node] = place
        s.out_token[place] = s.token[node]
        s.out_depth[place] = s.depth[node]
        s.out_parent[place] = s.place[s.parent[node]] if place > 0 else -1
        s.out_kind[place] = s.kind[node] if place > 0 else 0
        s.out_prob[place] = s.prob[node] if place > 0 else 1.0
    return size


def reset_rates(s) -> None:
    """Reset everything learned to its prior: hit rates, tokens per cost, trust in the estimates."""
    s.tokens, s.cost = RATE * COST, COST
    s.phrase_hits, s.phrase_trials = PHRASE_HITS * TRIALS, TRIALS
    s.draft_hits, s.draft_trials = DRAFT_HITS * TRIALS, TRIALS
    s.finds, s.find_trials = FINDS * TRIALS, TRIALS
    s.accepted = s.expected = EXPECTED


@jit
def _learn_hits(s, node, token):
    """Update the hit rates of phrases and draft model, and the calibration of estimates, by the
    target's `token` after a node."""
    if s.top_phrase[node] >= 0:
        s.phrase_hits = DECAY * s.phrase_hits + (1.0 if s.top_phrase[node] == token else 0.0)
        s.phrase_trials = DECAY * s.phrase_trials + 1.0
    if s.ranks[node] == 0:
        return
    learn_calibration(s, node, token)
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
def learn(states, m, size, chosen, path, ids, shares):
    """Learn from a verified tree of `size` nodes: `chosen[i]` is the target's token after node i
    (-1: unknown), `path` has the accepted nodes, root first. `ids` and `shares` have the target's
    rankings after the first nodes, [nodes, RUNNERS]."""
    s = states[0]
    step = 0
    expected = 0.0
    for place in range(size):
        node = s.order[place]
        depth = fill_path(s, node)
        if step < len(path) and path[step] == place:
            step += 1
            _learn_hits(s, node, chosen[place])
        elif s.recycle and chosen[place] >= 0:
            recycle(s, m, depth, chosen[place])
        if place < len(ids):
            store_ranking(s, m, depth, ids[place], shares[place])
        if place > 0:
            expected += s.reach[node]
    prior = (1.0 - TREE_DECAY) * EXPECTED  # added every step, so that the prior never decays
    s.expected = TREE_DECAY * s.expected + prior + expected
    s.accepted = TREE_DECAY * s.accepted + prior + (len(path) - 1.0)
    s.step_calls = s.calls
    s.step_tokens = float(len(path))
    s.step_cost = s.verify_cost[min(size, state.SIZES - 1)] + s.spent
    if s.paired:
        s.paired_tokens = s.step_tokens
        s.paired_cost = s.step_cost
    s.tokens += s.step_tokens
    s.cost += s.step_cost
