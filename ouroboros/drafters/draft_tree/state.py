"""The drafter's state, and the decorators that compile the functions on it.

Compiled functions take the state first: a record `s` of fixed-size arrays and a `Memory` `m` of
growing arrays. Unless they return a result, they write it to fields of `s`, which their docstrings
name. Nodes are numbers below `NODES`, assigned as the tree grows and discarded at the next step;
node 0 is the root, the sequence's last token. Invariant: `order` lists the tree's nodes by
descending probability, so a parent precedes its children.

NUMBA_DISABLE_JIT=1 runs the functions as Python, for debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ouroboros.core import noise
from ouroboros.core.jit import CONFIG, cache_folder, njit
from ouroboros.drafters.pool import CONTEXT

Function = TypeVar("Function", bound=Callable)

NODES = 1024  # nodes assigned in one step, dropped nodes included
CHILDREN = 5  # largest number of children of a node
OCCURRENCES = 48  # most occurrences of a token that are searched, newest first
WITH_HISTORY = 40  # the same if memory has earlier sequences,
OLDER = 24  # plus this many older occurrences whose previous token matches too
PAIRS = 1 << 17  # hash slots for pairs of tokens
LONGEST = 64  # cap of suffix match lengths
ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # match lengths of the PPM mixture
LEVELS = len(ORDERS)
RUNNERS = 8  # most probable tokens kept of each of the target's rankings
CANDIDATES = 176  # of a node: enough for WITH_HISTORY + OLDER + RECENT x (1 + RUNNERS)
SHORTLIST = 8  # candidates with the largest shares, for which probabilities are estimated
RECENT = 12  # newest recycled predictions, and newest rankings, searched after a token
RING = 1 << 14  # recycled predictions kept, 32 bytes each
RANKINGS = 1 << 13  # rankings kept, 92 bytes each
RANKS = 6  # tokens in the draft model's ranking after a node
OPTIONS = SHORTLIST + RANKS  # tokens that may become a node's children
INPUTS = 6  # of the calibration, see `candidates`
MAX_CALLS = 48  # draft calls in one step
SIZES = 257  # length of cost tables, for calls of 1 to SIZES - 1 nodes

PHRASE, RECYCLED, DRAFT, JUDGED = 1, 2, 4, 8  # bits: sources that propose a child
CURRENT = 16  # bit: the proposal occurs in the current sequence, not only in earlier ones
RANKED = 32  # bit: the target ranked the token after an earlier node
PROPOSED = PHRASE | RECYCLED  # sources that propose tokens before the draft model scores a node

PHRASE_FEATURES = (
    "one", "log-odds of the share", "log2(1 + match)", "log2(1 + rank)",
    "newest of the longest matches", "match is the longest", "only recycled",
    "log-odds of the index's hit rate", "temperature", "temperature x log-odds of the share",
    "temperature x noise", "temperature x log2(1 + match)", "earlier texts alone",
    "log2(1 + match of the rankings)", "log-odds of the ranked share",
    "log-odds of the ranked share x log2(1 + match of the rankings)",
    "temperature x log-odds of the ranked share", "only ranked",
)  # fmt: skip
DRAFT_FEATURES = (
    *PHRASE_FEATURES, "log-odds of the draft's share", "the draft's margin",
    "log2(1 + the draft's rank)", "not among the draft's ranks", "not in the index",
    "log-odds of the draft's hit rate", "first for both", "temperature x the draft's margin",
    "temperature x log-odds of the draft's share",
)  # fmt: skip


class Memory(NamedTuple):
    """Growing arrays that are kept from step to step.

    - `text`: the tokens of all sequences, separated by -1
    - `newest[token]`: the token's last position; `previous[i]`: the last position before i with the
      same token (-1: none); `newest_pair` and `previous_pair`: the same for the hash of two
      consecutive tokens
    - `ring[number % RING]`: recycled prediction `number`: the CONTEXT tokens before it (nearest
      first), the prediction, and the number of the previous prediction after the same token
    - `newest_recycled[token]`: the number of the last prediction after a token (0: none)
    - `ranking_context[number % RANKINGS]`: the CONTEXT tokens before ranking `number` of the target
      (nearest first), and the number of the previous ranking after the same token; `ranking_ids`
      and `ranking_shares`: its RUNNERS tokens (-1: none) and their probabilities
    - `newest_ranking[token]`: the number of the last ranking after a token (0: none)
    - `slot[token]`: scratch, the candidate number of a token
    """

    text: np.ndarray
    previous: np.ndarray
    previous_pair: np.ndarray
    newest: np.ndarray
    newest_pair: np.ndarray
    ring: np.ndarray
    newest_recycled: np.ndarray
    slot: np.ndarray
    ranking_context: np.ndarray
    ranking_ids: np.ndarray
    ranking_shares: np.ndarray
    newest_ranking: np.ndarray


_INTEGERS = {
    # the text's length, the current sequence's start; recycled predictions and stored rankings, in
    # total and before the current sequence; `stamp`: calls of `find_candidates`
    "length": (), "start": (), "recycled": (), "stamp": (), "recycled_before": (),
    "rankings": (), "rankings_before": (),
    # settings
    "max_nodes": (), "max_children": (), "draft_nodes": (), "recycle": (), "judge": (),
    "noisy": (), "seed": (),
    # the step: its number, depth limits of tree and draft, nodes assigned, nodes in the tree, draft
    # calls, nodes of the next draft call, nodes that the draft has scored in this step
    "steps": (), "max_depth": (), "max_draft_depth": (), "made": (), "tree_size": (), "calls": (),
    "pending": (), "drafted": (),
    # by node: `occurrence` lists positions of its token in the text, complete from position
    # `complete_from` on, and `match` their match lengths; `draft_row` is its row in the draft's
    # tree, `top_phrase` the best phrase's token, `longest_match` the length of the node's longest
    # match, `room` how many levels may follow below it; `ranks` counts the draft model's ranked
    # tokens
    "token": NODES, "parent": NODES, "depth": NODES, "kind": NODES, "scored": NODES, "place": NODES,
    "draft_row": NODES, "occurrences": NODES, "occurrence": (NODES, WITH_HISTORY + OLDER),
    "match": (NODES, WITH_HISTORY + OLDER), "complete_from": NODES, "top_phrase": NODES,
    "longest_match": NODES, "room": NODES, "ranks": NODES, "ranked": (NODES, RANKS),
    "children": NODES, "child_token": (NODES, CHILDREN),
    "child_node": (NODES, CHILDREN), "child_kind": (NODES, CHILDREN),
    "phrase_children": NODES, "phrase_child": (NODES, CHILDREN),  # from phrases alone
    # the tree, and the nodes of the next draft call
    "order": NODES, "to_score": NODES,
    # draft calls of the last verified step; the tree that a step would have verified without draft
    # calls; the node that the text has reached in it (-1: none); whether this step saved it
    "step_calls": (),
    "saved_size": (), "saved_at": (), "paired": (), "saved_token": NODES, "saved_parent": NODES,
    # output to the host: the draft's tree, the proposal
    "draft_token": NODES, "draft_parent": NODES, "draft_depth": NODES,
    "out_token": NODES, "out_parent": NODES, "out_depth": NODES, "out_kind": NODES,
    # scratch of one node: its path, candidates and options
    "path": NODES + 1, "level_of": LONGEST + 1, "top_level": (), "candidates": (),
    "candidate": CANDIDATES, "candidate_match": CANDIDATES, "candidate_kind": CANDIDATES,
    "candidate_rank": CANDIDATES, "listed": (), "shortlist": SHORTLIST, "longest": (),
    "longest_next": (), "ranking_match": (), "noise_key": (), "options": (),
    "option_token": OPTIONS, "option_kind": OPTIONS, "option_node": OPTIONS, "ranking": OPTIONS,
}  # fmt: skip
_REALS = {
    "temperature": (), "logit_scale": (),  # logits = this x scores
    # constants of a step: log-odds of each source's hit rate, factor on estimated gains, and the
    # smallest probability at which a node joins the tree
    "phrase_odds": (), "draft_odds": (), "trust": (), "floor": (),
    # by node: P(reached), P(accepted | its parent is)
    "reach": NODES, "prob": NODES, "out_prob": NODES,
    "child_prob": (NODES, CHILDREN), "ranked_score": (NODES, RANKS), "ranked_share": (NODES, RANKS),
    # the tree plus nodes that a draft call may add, sorted: P(reached), P(in the tree)
    "likely": NODES, "present": NODES,
    # scratch of one node
    "weight": (CANDIDATES, LEVELS), "total": LEVELS, "share": CANDIDATES,
    "ranking_total": (), "runner_share": CANDIDATES, "larger_share": CANDIDATES,
    "match_weight": CONTEXT + 1, "recency": CANDIDATES,
    "features": (OPTIONS, len(DRAFT_FEATURES)), "option_prob": OPTIONS,
    "option_input": (OPTIONS, INPUTS),
    "phrase_weights": (2, len(PHRASE_FEATURES)), "draft_weights": (2, len(DRAFT_FEATURES)),
    # cost of a target and a draft call by nodes, cost per node, cost of this step's draft calls
    "verify_cost": SIZES, "draft_cost": SIZES, "node_cost": (), "spent": (),
    # tokens and cost of the last step (`step_`), the saved tree so far (`saved_`), and the step
    # that saved it (`paired_`); the last two, once the text has left the tree: `text_`, `drafted_`
    "step_tokens": (), "step_cost": (), "saved_tokens": (), "saved_cost": (),
    "paired_tokens": (), "paired_cost": (), "text_tokens": (), "text_cost": (),
    "drafted_tokens": (), "drafted_cost": (),
    # in a batch: tokens per cost of all sequences (0: no batch), gain of the next draft call
    "shared_rate": (), "gain": (),
    # by child of a judged node: inputs of the calibration, and the calibrated estimate
    "child_input": (NODES, CHILDREN, INPUTS), "child_estimate": (NODES, CHILDREN),
    # learned: the calibration's weights, tokens and cost so far, hits and trials of phrases and of
    # the draft model, finds and trials, accepted and expected tokens
    "calibration": INPUTS, "tokens": (), "cost": (), "phrase_hits": (), "phrase_trials": (),
    "draft_hits": (), "draft_trials": (), "finds": (), "find_trials": (), "accepted": (),
    "expected": (),
}  # fmt: skip


def new_state() -> Any:
    """Return an array of one record, the state, filled with zeros.

    Functions called in every step take the array, because passing the record itself to compiled
    code takes a hundred times as long.
    """
    fields = [
        (name, kind, shape)
        for table, kind in ((_INTEGERS, np.int64), (_REALS, np.float64))
        for name, shape in table.items()
    ]
    return np.zeros(1, np.dtype((np.record, np.dtype(fields, align=True))))


EMPTY = (-1, -1, -1, -1, -1, 0, 0, 0, 0, -1, 0, 0)
"""Fill value of each array of `Memory`."""


def new_memory(vocab: int) -> Memory:
    """Return an empty memory for token ids below `vocab`."""
    text, ids = (1024,), (vocab,)
    runners = RANKINGS, RUNNERS
    shapes = (
        *(text, text, text, ids, (PAIRS,), (RING, CONTEXT + 2), ids, ids),
        *((RANKINGS, CONTEXT + 1), runners, runners, ids),
    )
    kinds = (*[np.int32] * 7, np.int64, np.int32, np.int32, np.float32, np.int32)
    return Memory(*(np.full(*made) for made in zip(shapes, EMPTY, kinds, strict=True)))


PACKAGE = Path(__file__).parent
CACHE = cache_folder([noise.SOURCE, PACKAGE.parent / "pool.py", *sorted(PACKAGE.glob("*.py"))])


def jit(function: Function, *, lists: bool = False) -> Function:
    """Compile a function at its first call, or load its cached machine code. `lists`: whether it
    makes or extends a list. Otherwise numba's reference counting is off: counting all arrays of a
    `Memory` in each call would take half of the time."""
    return njit(function, CACHE, _nrt=lists)


class HostCall:
    """A compiled function that Python calls in every step, always with the same argument types.

    After the first call, numba's type dispatch is bypassed: for a record and a dozen arrays it
    takes as long as the function itself.
    """

    def __init__(self, function: Callable) -> None:
        self.dispatcher: Any = jit(function)
        self.call: Callable = self._in_python if CONFIG.DISABLE_JIT else self._first_call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def _first_call(self, *args: Any) -> Any:
        result = self.dispatcher(*args)
        self.call = self.dispatcher.get_overload(self.dispatcher.signatures[0])
        return result

    def _in_python(self, *args: Any) -> Any:
        with np.errstate(over="ignore"):  # the noise's hash overflows by design
            return self.dispatcher(*args)
