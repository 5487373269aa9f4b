"""Recorded trees and outcomes, compared with the loop's."""

import random

from bench_models import tiny_pair

from ouroboros.bench.run.tree_recorder import ProposedTree, Recorder
from ouroboros.core.tree import TokenTree
from ouroboros.decode import RootOnly, decode


class Branching(RootOnly):
    """Proposes a known text with random slips, and remembers what the target chose."""

    def __init__(self, text):
        self.text, self.draw, self.seen = text, random.Random(4), []

    def propose(self, tokens, budget):
        ahead = self.text[len(tokens) : len(tokens) + min(6, budget - 1)]
        branches = [[t if self.draw.random() < 0.8 else 9 for t in ahead] for _ in range(3)]
        return TokenTree.chain(tokens[-1], ()).graft(branches, source="draft")

    def observe(self, tree, chosen, path):
        self.seen.append(ProposedTree(tree, tuple(path), chosen[path[-1]]))


def test_recorded_trees_are_those_of_the_loop():
    target, _ = tiny_pair()
    for prompt in ([3, 4, 5], [7]):
        drafter = Branching(decode(target, RootOnly(), prompt, max_new=40).tokens)
        recorder = Recorder(drafter)
        decode(target, recorder, prompt, max_new=40)
        assert recorder.trees() == drafter.seen
        assert any(len(step.path) > 2 for step in drafter.seen)
