"""Interface to the compiled draft tree: `TreeGrower` takes lists and arrays, returns trees.

Compiled functions do no bounds checks, so this class sizes every array before calling them. Memory
is bounded: beyond MAX_TEXT tokens the older half of the text is dropped; recycled predictions are
limited to RING.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from ouroboros.core.jit import compile_now
from ouroboros.core.tree import TokenTree
from ouroboros.drafters.draft_tree import grow, state
from ouroboros.drafters.draft_tree.candidates import Weights, fill_tables
from ouroboros.drafters.draft_tree.phrase_index import append
from ouroboros.drafters.draft_tree.state import Memory, new_memory, new_state
from ouroboros.drafters.pool import CONTEXT, MAX_TOKEN, check_range

MAX_TEXT = 1 << 20  # tokens, 8 bytes each
NO_RANKINGS = (
    np.empty((0, state.RUNNERS), np.int32),
    np.empty((0, state.RUNNERS), np.float32),
)
NOT_PADDED = list(range(state.SIZES))
PADDING_GAIN = 0.95  # pad a tree if the larger call costs less than this x the smaller

SOURCES = tuple(
    "judged" if kind & state.JUDGED else "phrase" if kind & state.PHRASE
    else "recycled" if kind & (state.RECYCLED | state.RANKED) else "draft"
    for kind in range(2 * state.RANKED)
)  # fmt: skip
"""Source of a node, by its kind: a "phrase" of the text, a "recycled" prediction, the "draft"
model, or "judged": a phrase whose parent the draft model has scored."""


class TreeGrower:
    """Grows a draft tree in each step of a sequence.

    Call `start` for each sequence. In each step call `begin`, `add_rankings` until it returns None,
    `proposal` and `learn`. The settings `max_nodes`, `children`, `draft_nodes`, `recycle` and
    `judge` are those of `Ouroboros`. Raises `ValueError` for a limit out of range.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        max_nodes: int = 64,
        children: int = state.CHILDREN,
        draft_nodes: int = 24,
        recycle: bool = True,
        judge: bool = True,
        vocab: int = 1024,
    ) -> None:
        check_range(1, state.NODES // 2, max_nodes=max_nodes)
        check_range(1, state.CHILDREN, children=children)
        check_range(1, state.NODES, draft_nodes=draft_nodes)
        self.states = new_state()
        s = self.state = self.states[0]
        s.max_nodes, s.max_children, s.draft_nodes = max_nodes, children, draft_nodes
        self._max_nodes = max_nodes
        s.recycle, s.judge = int(recycle), int(judge)
        self._recycle = recycle
        self._rankings = NO_RANKINGS
        fill_tables(s)
        s.phrase_weights[:] = weights.index, weights.ranked_index
        s.draft_weights[:] = weights.draft, weights.ranked_draft
        # views of the record's arrays, since `s.name` takes 3 us (`self.states["name"]` 0.1 us)
        self._draft = s.draft_token, s.draft_parent, s.draft_depth
        self._out = s.out_token, s.out_parent, s.out_depth
        self._costs = s.verify_cost, s.draft_cost
        self._kind, self._prob, self._likely = s.out_kind, s.out_prob, s.likely
        self._order, self._row = s.order, s.draft_row
        self._unlearned: Sequence[int] = ()
        self._start = self._known = self._drafted = self._proposed = 0
        self.memory = new_memory(vocab)
        self.forget()

    def forget(self) -> None:
        """Clear all texts, recycled predictions and rankings."""
        s = self.state
        s.length = s.start = s.recycled = s.rankings = s.stamp = 0
        self.memory = new_memory(len(self.memory.newest))

    def start(self, *, seed: int | None = None, temperature: float = 0.0) -> None:
        """Begin a sequence, decoded at `temperature` (0: greedy). `seed` determines the Gumbel
        noise with which the sampler chooses tokens (see `Sampler`; None: the noise is not known).
        Earlier sequences stay in memory; hit rates and tokens per cost restart at their priors."""
        s = self.state
        if s.length > MAX_TEXT:
            kept = self.state_dict()
            self.load_state_dict({**kept, "text": kept["text"][-MAX_TEXT // 2 :]})
        if s.length:
            self._append([-1])
        s.start = self._start = int(s.length)
        s.recycled_before, s.rankings_before = s.recycled, s.rankings
        grow.reset_rates(s)
        s.saved_at, s.text_cost = -1, 0.0
        self._known, self._unlearned = 0, ()
        s.temperature, s.logit_scale = temperature, temperature or 1.0
        s.noisy, s.seed = int(seed is not None), seed or 0

    def set_costs(self, verify: Sequence[float], call: Sequence[float]) -> None:
        """Set the costs of calls, in any one unit: `verify[i]` of a target call of i + 1 nodes,
        `call[i]` of a draft call of i + 1 nodes.

        The last value of each list also applies to larger calls. If a larger target call costs
        clearly less than a smaller one, trees are padded to the larger size. A draft call is
        assumed to cost at most as much as any larger one.
        """
        costs = np.asarray(verify, float) / verify[0]  # costs[i]: of i + 1 nodes
        most = min(len(costs), self._max_nodes)
        self._padded = NOT_PADDED
        if (costs[: most - 1] > costs[1:most]).any():
            self._padded = list(NOT_PADDED)
            for size in range(most - 1, 0, -1):
                larger = self._padded[size + 1]
                if costs[larger - 1] < PADDING_GAIN * costs[size - 1]:
                    self._padded[size], costs[size - 1] = larger, costs[larger - 1]
        draft_costs = np.minimum.accumulate(np.asarray(call, float)[::-1])[::-1] / verify[0]
        for table, known in zip(self._costs, (costs, draft_costs), strict=True):
            table[1:] = known[-1]
            table[1 : len(known) + 1] = known[: state.SIZES - 1]
        verify_cost, largest = self._costs[0], max(2, min(self._max_nodes, state.SIZES - 1))
        self.states["node_cost"][0] = (verify_cost[largest] - verify_cost[1]) / (largest - 1)

    @property
    def tokens_per_cost(self) -> float:
        """The new tokens of this sequence so far per unit of cost, a target call of one node."""
        return float(self.states["tokens"][0] / self.states["cost"][0])

    def begin(self, tokens: Sequence[int], max_depth: int, max_draft_depth: int) -> bool:
        """Begin a step on `tokens`, which must extend those of the last step; return whether a
        draft call on the `draft_tree` pays. `max_depth` and `max_draft_depth`: see `grow.begin`.
        """
        new = tokens[self._known :]
        if self._unlearned:
            after = dict(zip(self._unlearned, new, strict=False))
            self._learn([after.get(node, -1) for node in range(self._proposed)], self._unlearned)
            self._unlearned = ()
        self._known += len(new)
        self._reserve(self._start + self._known, max(new))
        depth = min(max_depth, state.NODES - 2)
        self._drafted = grow.begin(
            self.states, self.memory, np.array(new, np.int64), depth, max_draft_depth
        )
        return self._drafted > 0

    def add_rankings(
        self, ids: np.ndarray, scores: np.ndarray, shares: np.ndarray
    ) -> TokenTree | None:
        """Store the draft model's best tokens after each of the tree's `logit_nodes`, with their
        scores and probabilities (see `Ranked`), [nodes, ranks] each; return the next `draft_tree`.
        Raises `ValueError` for more than RANKS ranks."""
        if ids.shape[1] > state.RANKS:
            raise ValueError(f"{ids.shape[1]} ranks a node: at most {state.RANKS}")
        self._reserve(0, int(ids.max()))
        reals = (np.ascontiguousarray(values, np.float64) for values in (scores, shares))
        ranked = np.ascontiguousarray(ids, np.int64), *reals
        self._drafted += grow.add_rankings(self.states, self.memory, *ranked)
        return self.draft_tree()

    def draft_tree(self) -> TokenTree | None:
        """Return the tree for the draft model to score, or None if no further draft call pays. Pass
        its ranking after `logit_nodes` to `add_rankings`; the other nodes were scored before."""
        size, count = self._drafted, self.states["pending"].item()
        if not count:
            return None
        return TokenTree.from_nodes(
            *_first(size, self._draft), logit_nodes=range(size - count, size)
        )

    def count_plain_step(self) -> None:
        """Count a step of plain decoding: one token, for one unit of cost."""
        self.states["tokens"][0] += 1
        self.states["cost"][0] += 1

    def decline(self) -> None:
        """Cancel the planned draft call, on the `draft_tree`."""
        grow.decline(self.states)
        self._drafted = self.states["drafted"].item()

    def offer(self) -> np.ndarray:
        """Return the probabilities with which the tree's nodes, except the root, are accepted,
        [nodes]; the largest first."""
        return self._likely[1 : grow.offer(self.states)].copy()

    def proposal(self, size: int = 0) -> TokenTree:
        """Return the tree of the `size` most probable nodes (0: as many as are worth verifying),
        padded with probes if a larger call is cheaper."""
        fill = not size and self.states["max_depth"].item() > 0
        size = self._proposed = grow.propose(self.states, size)
        return TokenTree.from_nodes(
            *_first(size, self._out),
            source=("", *[SOURCES[kind] for kind in self._kind[1:size].tolist()]),
            probability=tuple(self._prob[:size].tolist()),
            padding=self._padded[size] - size if fill else 0,
        )

    def drafted_prefix(self, path: Sequence[int]) -> list[int]:
        """Return the accepted nodes before the first one that the draft model has not scored, as
        numbered in the tree that it scored last; [] without a draft call. `path` is numbered as in
        the proposal."""
        if not self._drafted:
            return []
        rows = self._row[self._order[list(path)]].tolist()
        return rows[: rows.index(-1)] if -1 in rows else rows

    def store_rankings(self, ids: np.ndarray, shares: np.ndarray) -> None:
        """Store the target's most probable tokens after the first nodes of the proposal (-1: none)
        and their probabilities, [nodes, RUNNERS] each, for `learn`."""
        self._reserve(0, int(ids.max()))
        self._rankings = (
            np.ascontiguousarray(ids, np.int32),
            np.ascontiguousarray(shares, np.float32),
        )

    def learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        """Learn from verification. `chosen[i]` is the target's token after node i of the proposal
        (-1: unknown); `path` has the accepted nodes, root first. Without recycling, `chosen` is
        ignored: the next call of `begin` gets the accepted tokens and learns from them."""
        if self._recycle:
            self._learn(chosen, path)
        else:
            self._unlearned = path

    def _learn(self, chosen: Sequence[int], path: Sequence[int]) -> None:
        self._reserve(0, max(chosen))
        answers = np.array(chosen, np.int64), np.array(path, np.int64)
        grow.learn(self.states, self.memory, self._proposed, *answers, *self._rankings)
        self._rankings = NO_RANKINGS

    def state_dict(self) -> dict:
        """Return the state kept between prompts: "text", all texts separated by -1, and "recycled",
        the recycled predictions, oldest first; each row has the CONTEXT previous tokens (nearest
        first, -1: none) and the prediction."""
        s, m = self.state, self.memory
        numbers = np.arange(max(1, int(s.recycled) - state.RING + 1), int(s.recycled) + 1)
        return {
            "text": m.text[: s.length].tolist(),
            "recycled": m.ring[numbers % state.RING, : CONTEXT + 1].tolist(),
        }

    def load_state_dict(self, saved: Mapping) -> None:
        """Restore the state of `state_dict`. Raises `ValueError` for damaged content."""
        text, entries = _tokens(saved["text"]), _tokens(saved["recycled"])
        entries = entries.reshape(-1, CONTEXT + 1)
        if len(entries) > state.RING or (entries[:, [0, CONTEXT]] < 0).any():
            raise ValueError("recycled predictions of another version")
        self.forget()
        self._append(text)
        self._reserve(0, int(entries.max(initial=-1)))
        m = self.memory
        for number, entry in enumerate(entries, start=1):
            m.ring[number % state.RING] = *entry, m.newest_recycled[entry[0]]
            m.newest_recycled[entry[0]] = number
        self.state.recycled = len(entries)

    def _append(self, tokens: Sequence[int] | np.ndarray) -> None:
        new = np.array(tokens, np.int64)
        self._reserve(int(self.state.length) + len(new), int(new.max(initial=-1)))
        append(self.state, self.memory, new)

    def _reserve(self, text: int, token: int) -> None:
        """Extend the arrays to hold `text` tokens of text, and token ids up to `token`."""
        m = self.memory
        if text > len(m.text) or token >= len(m.newest):
            ids = token + 1
            sizes = text, text, text, ids, 0, 0, ids, ids, 0, 0, 0, ids
            arrays = zip(m, sizes, state.EMPTY, strict=True)
            self.memory = Memory(*(_extended(*array) for array in arrays))


def _first(size: int, arrays: Sequence[np.ndarray]) -> tuple:
    """Return tokens, parents and depths of the first `size` nodes, for `TokenTree.from_nodes`."""
    tokens, parents, depths = arrays
    return tuple(tokens[:size].tolist()), tuple(parents[:size].tolist()), depths[:size].copy()


def _extended(array: np.ndarray, size: int, empty: int) -> np.ndarray:
    """Return the array, doubled with values `empty` until it holds `size` values."""
    while len(array) < size:
        array = np.concatenate([array, np.full_like(array, empty)])
    return array


def _tokens(values: Sequence) -> np.ndarray:
    tokens = np.array(values)
    if tokens.size and (tokens.dtype.kind != "i" or tokens.min() < -1 or tokens.max() >= MAX_TOKEN):
        raise ValueError(f"token ids must be whole numbers from -1 to {MAX_TOKEN - 1}")
    return tokens.astype(np.int64)


@cache
def warm_up_jit() -> None:
    """Compile the functions of a step, or load them from the cache, before any step is timed. Later
    calls do nothing."""
    compile_now(_run_once, state.CACHE, "the drafter")


def _run_once() -> None:
    """Call every compiled function."""
    grower = TreeGrower(Weights.load(), draft_nodes=1)
    grower.set_costs([1.0], [0.0])
    for text in ([1, 2, 1, 2, 1], [3]):
        grower.start()
        if grower.begin(text, 4, 4):
            grower.add_rankings(np.array([[5, 6]]), np.array([[1.0, 0.0]]), np.array([[0.7, 0.3]]))
        grower.decline()
        grower.offer()
        grower.learn([2] * len(grower.proposal()), [0])
