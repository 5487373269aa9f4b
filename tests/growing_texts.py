"""Texts and a draft for growing trees without any model, and what a tree of them looks like."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.tree_grower import Nodes, Shape, TreeGrower

RANKS = 6


def chain_text(length: int, vocab: int, seed: int = 0) -> list[int]:
    """A Markov text: three tokens may follow each, one of them mostly."""
    draw = random.Random(f"text-{seed}")
    following = [[draw.randrange(vocab) for _ in range(3)] for _ in range(vocab)]
    text = [draw.randrange(vocab)]
    while len(text) < length:
        text.append(draw.choices(following[text[-1]], [0.75, 0.15, 0.1])[0])
    return text


def growth(vocab: int = 64, *, call: float = 0.2, **shape) -> TreeGrower:
    """A growth with rising costs."""
    made = TreeGrower(Weights.load(), Shape(**shape), vocab=vocab)
    made.set_costs([1 + 0.02 * n for n in range(64)], [call + 0.004 * n for n in range(64)])
    return made


def ranking(nodes: Nodes, asked: int, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a draft says after nodes: a function of the token alone."""
    count = min(RANKS, vocab)
    ids = np.zeros((asked, count), dtype=np.int64)
    scores, shares = np.zeros((asked, count)), np.zeros((asked, count))
    for row, token in enumerate(nodes.tokens[len(nodes.tokens) - asked :]):
        draw = random.Random(token)
        ids[row] = draw.sample(range(vocab), count)
        shares[row] = sorted((draw.random() ** 4 for _ in range(count)), reverse=True)
        shares[row] /= shares[row].sum() * 1.05
        scores[row] = np.log(shares[row])
    return ids, scores, shares


def depths(parents: Sequence[int]) -> list[int]:
    found = [0]
    for parent in parents[1:]:
        found.append(found[parent] + 1)
    return found


def step(grown: TreeGrower, text: Sequence[int], known: int, *, vocab: int, room: int = 40) -> int:
    """One whole step on the first `known` tokens of a text; return how many are new."""
    asked = grown.begin(text[:known], room, room)
    while asked:
        nodes = grown.draft_tree()
        asked = grown.add_rankings(*ranking(nodes, asked, vocab))
    made = grown.proposal()
    at = depths(made.parents)
    chosen = [text[known + depth] for depth in at]
    path = [0]
    for node in range(1, len(made.tokens)):
        if made.parents[node] == path[-1] and made.tokens[node] == chosen[path[-1]]:
            path.append(node)
    grown.learn(chosen, path)
    return len(path)


def path_of(grown: TreeGrower, node: int) -> list[int]:
    """The tokens from the root to a node of the state."""
    s, found = grown.state, []
    while node >= 0:
        found.append(int(s.token[node]))
        node = int(s.parent[node])
    return found[::-1]
