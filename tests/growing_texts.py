"""Texts and a draft for growing trees without a model, and a picture of such a tree."""

from __future__ import annotations

import random

import numpy as np

from ouroboros.core.tree import TokenTree
from ouroboros.drafters.draft_tree.candidates import Weights
from ouroboros.drafters.draft_tree.tree_grower import TreeGrower

RANKS = 6


def chain_text(length: int, vocab: int, seed: int = 0) -> list[int]:
    """A Markov text: three tokens may follow each, one of them mostly."""
    draw = random.Random(f"text-{seed}")
    following = [[draw.randrange(vocab) for _ in range(3)] for _ in range(vocab)]
    text = [draw.randrange(vocab)]
    while len(text) < length:
        text.append(draw.choices(following[text[-1]], [0.75, 0.15, 0.1])[0])
    return text


def growth(vocab: int = 64, *, call: float = 0.2, start: bool = True, **limits) -> TreeGrower:
    """A grower with rising costs, its first sequence begun."""
    made = TreeGrower(Weights.load(), vocab=vocab, **limits)
    made.set_costs([1 + 0.02 * n for n in range(64)], [call + 0.004 * n for n in range(64)])
    if start:
        made.start()
    return made


def ranking(draft: TokenTree, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a draft model says after a tree's logit nodes: a function of the token alone."""
    count = min(RANKS, vocab)
    ids = np.zeros((len(draft.logit_nodes), count), dtype=np.int64)
    scores, shares = np.zeros(ids.shape), np.zeros(ids.shape)
    for row, node in enumerate(draft.logit_nodes):
        draw = random.Random(draft.tokens[node])
        ids[row] = draw.sample(range(vocab), count)
        shares[row] = sorted((draw.random() ** 4 for _ in range(count)), reverse=True)
        shares[row] /= shares[row].sum() * 1.05
        scores[row] = np.log(shares[row])
    return ids, scores, shares


def drafts(grown: TreeGrower, text: list[int], depth: int = 20, draft_depth: int = 20, vocab=12):
    """Begin a step, and yield each tree that the draft model scores in it."""
    grown.begin(text, depth, draft_depth)
    draft = grown.draft_tree()
    while draft:
        yield draft
        draft = grown.add_rankings(*ranking(draft, vocab))


def step(grown: TreeGrower, text: list[int], known: int, *, vocab: int) -> int:
    """One whole step on the first `known` tokens of a text; return how many are new."""
    list(drafts(grown, text[:known], 40, 40, vocab))
    made = grown.proposal()
    chosen = [text[known + depth] for depth in made.depths().tolist()]
    path = made.longest_match(chosen)
    grown.learn(chosen, path)
    return len(path)


def path_of(grown: TreeGrower, node: int) -> list[int]:
    """The tokens from the root to a node of the state."""
    s, found = grown.state, []
    while node >= 0:
        found.append(int(s.token[node]))
        node = int(s.parent[node])
    return found[::-1]
